"""Token sources: training windows and probes from files or generators."""
