"""Evaluation of trained models on benchmark suites, by lm-evaluation-harness."""
