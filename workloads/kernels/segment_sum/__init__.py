"""Sums of rows that belong to one segment."""
