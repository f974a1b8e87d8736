"""Top-k selection by Tucker-decomposed scores, without scoring all slots."""
