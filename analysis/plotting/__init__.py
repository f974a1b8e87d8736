"""Figures of sweeps, fits, architectures and usage."""
