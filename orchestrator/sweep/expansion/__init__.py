"""Expansion of a sweep file: entries, sections and budgets become trials."""
