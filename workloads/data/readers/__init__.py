"""Readers of files of documents."""
