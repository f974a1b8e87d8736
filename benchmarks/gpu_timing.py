"""Medians of CUDA event times, and the bandwidth that they are compared with."""

import statistics
from collections.abc import Callable

import torch


def copy_gbps() -> float:
    """Return the bandwidth of a large copy on the GPU, bytes read and written, in GB/s."""
    source = torch.randn(2**29, device="cuda").bfloat16()
    target = torch.empty_like(source)
    return 2 * source.numel() * 2 / median_ms(lambda: target.copy_(source)) / 1e6


def median_ms(
    run: Callable[[], object], *, before: Callable[[], object] = lambda: None, repeats: int = 20
) -> float:
    """Return the median time of `run` on the GPU in ms, after two warm-up runs.

    Each follows a call of `before`, which is not counted.
    """
    for _ in range(2):
        before()
        run()
    times = []
    for _ in range(repeats):
        before()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        times.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in times)


def captured(step: Callable[[], object]) -> Callable[[], None]:
    """Return the replay of a step that has been captured as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
