"""Products of table rows with the vectors that name them: the input side of experts of one hidden unit."""
