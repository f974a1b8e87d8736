"""Transformer backbones and their size families."""
