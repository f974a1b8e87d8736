"""Matching of model sizes: equal FLOPs, parameters, bytes or measured step times."""
