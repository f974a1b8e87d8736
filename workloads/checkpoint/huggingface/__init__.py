"""Models in Hugging Face format, to load in transformers or to start a trial."""

EXPORTED = ("dense", "pythia", "moe")
"""Architectures that transformers has a model for; here, because `families` imports torch."""
