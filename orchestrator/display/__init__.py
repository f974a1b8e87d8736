"""What the CLI prints, as rich renderables. Computes nothing of its own."""
