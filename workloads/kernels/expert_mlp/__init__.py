"""Routed SwiGLU experts: gather, grouped products, activation and weighted sum in few kernels."""
