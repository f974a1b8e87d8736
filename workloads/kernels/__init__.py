"""Memory operations, one per folder.

reference.py defines the operation, op.py picks the implementation.
"""
