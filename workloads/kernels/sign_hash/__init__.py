"""Signs of short pieces of a vector as row numbers: what hash-based memories read their tables by."""
