"""Sweeps on Slurm: pilots that start a private Ray cluster inside an allocation, or one plain job per trial."""
