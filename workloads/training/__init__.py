"""The training loop, its optimizers, schedules and evaluation."""
