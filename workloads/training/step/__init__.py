"""One optimizer step: forward, backward, compilation, CUDA graph, timing."""
