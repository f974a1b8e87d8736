"""Sweep files: one YAML file is one question."""
