"""Memory tables over the ranks of a trial: who holds which part, and what ranks tell each other to read it."""
