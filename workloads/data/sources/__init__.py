"""Token sources. One file per source; the file name is its name in YAML."""
