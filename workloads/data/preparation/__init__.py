"""Preparation of corpora: text to token shards, on all cores, resumable."""
