"""Scaling questions: IsoFLOP optima, frontiers, compute multipliers, experimental design."""
