"""The best slots of a grid of scores that is a product of thin factors, without scoring them all."""
