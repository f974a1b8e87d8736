"""Sweep files as text: discovery, YAML with positions, validation, and messages with file, line and fix."""
