"""Tables of runs: from a tracker, a runs folder or a table of somebody else, validated."""
