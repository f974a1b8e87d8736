"""The Slurm launcher: jobs, options, autoscaler, and Ray inside of allocations."""
