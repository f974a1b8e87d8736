"""The Walsh-Hadamard transform: a dense orthogonal map without weights, cheap to apply."""
