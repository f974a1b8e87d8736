"""Weighted sums of table rows: what every lookup-based architecture reads its memory with."""
