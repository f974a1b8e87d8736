"""Modules that architectures are made of.

Linear, norms, feed-forward, mixtures of experts, initialisation.
"""
