"""Laws, one file each: an equation, its source, and its exact derivatives. `analysis/law.py` says what a law is."""
