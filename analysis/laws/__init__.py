"""Laws, one file each: an equation, its source, and its exact derivatives. `analysis/fitting/law.py` says what a law is."""
