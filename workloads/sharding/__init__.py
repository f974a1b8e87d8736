"""Sharding of memory tables and dense parameters over ranks."""
