"""Tokens to the rows that experts work on, and back."""
