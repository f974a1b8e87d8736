"""Fused optimizer step of a table, from its sparse gradient.

Row sums and update in one pass, without a gradient as large as the table.
"""
