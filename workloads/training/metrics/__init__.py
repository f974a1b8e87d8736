"""What a trial reports: metrics, throughput, use of the device, divergence."""
