"""Choice of a token's experts, and the order of rows by expert."""
