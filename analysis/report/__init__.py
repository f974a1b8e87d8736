"""The HTML report of a sweep and its tables."""
