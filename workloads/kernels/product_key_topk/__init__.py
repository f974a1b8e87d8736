"""The best slots of a product-key memory, without scoring them all."""
