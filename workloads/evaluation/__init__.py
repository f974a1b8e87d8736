"""Evaluation of trained models on suites of benchmarks, through lm-evaluation-harness."""
