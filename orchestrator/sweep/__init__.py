"""Sweep files: parsing, expansion into trials, and matching of sizes."""
