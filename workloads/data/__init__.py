"""From files or a generator to token windows and probes."""
