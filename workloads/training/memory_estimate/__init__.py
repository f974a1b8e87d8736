"""Peak memory that training needs, and the micro-batch that fits."""
