"""Trained models of a runs folder: loaded, exported, evaluated."""
