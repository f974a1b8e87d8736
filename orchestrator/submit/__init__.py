"""Submissions: from a priced sweep to a running controller, on this machine, a Ray cluster or Slurm."""
