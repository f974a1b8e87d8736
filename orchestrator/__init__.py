"""Sweeps, trials, scheduling and tracking: what runs, where, and what became of it. Imports no torch."""
