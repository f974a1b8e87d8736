"""Submissions: a priced sweep is recorded and run, here, on Ray or on Slurm."""
