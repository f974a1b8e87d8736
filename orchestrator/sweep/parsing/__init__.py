"""Parsing of sweep files: discovery, YAML with positions, validation and messages."""
