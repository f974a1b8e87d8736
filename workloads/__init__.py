"""Computation of one trial: data, architectures, training, evaluation.

Imports neither Ray nor MLflow.
"""
