"""Weighted sums of table rows, the read of every lookup-based architecture."""
