"""Scaling laws, one file each: an equation, its source, and its exact derivatives."""
