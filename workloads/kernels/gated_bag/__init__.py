"""Weighted sums of table rows, whose weights are scores times products with a second table's."""
