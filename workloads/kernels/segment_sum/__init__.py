"""Segment sums: the readers of each table row, added up."""
