"""Modules that architectures are made of: linear, norms, feed-forward, mixtures of experts, initialisation."""
