"""Scheduling policy: which waiting trial starts where, and why others wait."""
