"""Records in, numbers and figures out."""
