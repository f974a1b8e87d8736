"""Dot products with gathered rows."""
