"""Launchers of ranks: processes, Ray, Slurm. Their protocol is control/launcher_port.py."""
