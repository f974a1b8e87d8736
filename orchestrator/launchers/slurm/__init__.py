"""Slurm as a launcher: jobs, options, the autoscaler, and Ray inside of allocations."""
