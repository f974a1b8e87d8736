"""Routed SwiGLU experts: gather, products, activation and sum in few kernels."""
