"""Decoding: continuations of prompts with a cache, greedy or sampled."""
