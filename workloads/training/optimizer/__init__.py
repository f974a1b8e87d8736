"""AdamW, optimizers of memory tables, learning-rate schedules."""
