"""From a sweep file to trials, step by step; `orchestrator/sweep.py` puts the steps together."""
