"""Launchers of ranks: processes, Ray, Slurm. Protocol: control/launcher_port.py."""
