"""Gradient of rotary positions."""
