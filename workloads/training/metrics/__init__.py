"""Training metrics and their reporter: throughput, use of the device, divergence."""
