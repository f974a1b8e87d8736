"""A table's optimizer step out of its reads.

Row sums and update in one pass, without a gradient as large as the table.
"""
