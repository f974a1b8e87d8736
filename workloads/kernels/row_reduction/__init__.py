"""For every row of a table, the weighted sum over those who read it: the way back through a lookup, and all its cost."""
