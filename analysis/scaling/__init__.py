"""Scaling questions: IsoFLOP optima, frontiers, multipliers, experimental design."""
