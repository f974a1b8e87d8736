"""Memory operations. Each folder: reference.py defines it, op.py picks the implementation."""
