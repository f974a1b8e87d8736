"""The scheduling policy: which waiting trial starts where, and why the others wait."""
