"""Signs of short pieces of a vector as row numbers.

What hash-based memories read their tables by.
"""
