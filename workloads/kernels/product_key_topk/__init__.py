"""Top-k selection by product keys, without scoring all slots."""
