"""Sweep expansion, scheduling, launching and tracking of trials. Imports no torch."""
