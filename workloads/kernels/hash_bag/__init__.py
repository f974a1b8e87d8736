"""Sign-hash lookup: rows chosen by the signs of an input, summed.

Every chunk of a vector reads one row of a table of its own, and the rows are summed.
"""
