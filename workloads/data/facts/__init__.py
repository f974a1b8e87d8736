"""Facts as documents and as probes."""
