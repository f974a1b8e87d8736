"""Models in Hugging Face format, to load in transformers or to start a trial."""
