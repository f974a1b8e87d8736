"""Models in Hugging Face's format: folders that transformers loads, and that start a trial."""
