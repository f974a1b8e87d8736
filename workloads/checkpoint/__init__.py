"""Checkpoints: written atomically, read safely, split over ranks."""
