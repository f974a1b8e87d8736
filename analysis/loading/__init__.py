"""Tables of runs from a tracker, a runs folder or anybody's table, validated."""
