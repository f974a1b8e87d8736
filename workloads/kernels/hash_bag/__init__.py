"""Look-up by signs.

Every chunk of a vector reads one row of a table of its own, and the rows are summed.
"""
