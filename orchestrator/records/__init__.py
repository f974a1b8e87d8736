"""State of record on disk: trial specs and folders, journals, locks, provenance."""
