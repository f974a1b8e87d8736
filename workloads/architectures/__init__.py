"""One file per architecture; the file name is its name in YAML."""
