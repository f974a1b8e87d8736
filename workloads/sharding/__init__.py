"""Sharding of memory tables and dense parameters over the ranks of a trial.

Who holds which part, and what ranks tell each other to read it.
"""
