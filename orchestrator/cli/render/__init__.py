"""Terminal output of the command: plans, progress and results."""
