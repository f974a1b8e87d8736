"""One matrix product per group of rows: what a mixture of experts spends its time on."""
