"""The state of record on disk: trial specifications, trial folders, journals, locks and provenance."""
