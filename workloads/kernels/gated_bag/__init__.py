"""Weighted sums of table rows, gated by products with a second table's rows.

A weight is a score times such a product.
"""
