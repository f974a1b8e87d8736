"""Sign hash: the signs of a vector's chunks as row numbers.

What hash-based memories read their tables by.
"""
