"""Sizes chosen by a rule: equal FLOPs, equal parameters, equal bytes, equal measured step time."""
