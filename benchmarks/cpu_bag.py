"""Time of the weighted bag and torch's `embedding_bag` on a CPU, forward and backward.

    python benchmarks/cpu_bag.py                 # one thread, about a minute
    python benchmarks/cpu_bag.py --threads 8 --markdown

A step is forward and backward to table (dense) and weights, in fp32, with the trainer's settings.
"ours / torch" is the ratio of the medians, below 1 where ours is faster; 1.2 is what is asked for.
Errors are relative norms of ours against the same in float64: output, gradient of the table,
gradient of the weights.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from reads import draw_ids
from torch import Tensor
from torch.nn import functional

from workloads.kernels.weighted_bag.op import weighted_bag
from workloads.training import device

# rows, width, tokens, reads a token: a large memory, one of the presets at 1m, one of a small
# preset, n-gram rows.
SHAPES = [
    (65_536, 256, 2048, 128),
    (16_384, 128, 4096, 32),
    (4096, 32, 4096, 16),
    (65_536, 64, 16_384, 1),
]
COLUMNS = (
    "rows", "width", "tokens", "reads", "ids", "forward ms", "torch ms", "ours / torch",
    "step ms", "torch ms", "ours / torch", "errors",
)  # fmt: skip

Bag = Callable[[Tensor, Tensor, Tensor], Tensor]


def main() -> None:
    """Print one line for each shape and distribution of ids."""
    arguments = _arguments()
    print(
        f"{_cpu()}, {arguments.threads} threads, torch {torch.__version__}; medians of {arguments.repeats}\n"
    )
    line = "| {} |".format if arguments.markdown else "{}".format
    bar = " | " if arguments.markdown else "  "
    print(line(bar.join(COLUMNS)))
    if arguments.markdown:
        print("|" + "---|" * len(COLUMNS))
    with device.numerics(torch.device("cpu"), n_threads=arguments.threads, bf16=False):
        for shape in SHAPES:
            for kind in ("uniform", "zipf"):
                print(line(bar.join(_line(shape, kind, arguments.repeats))), flush=True)


def _line(shape: tuple[int, int, int, int], kind: str, repeats: int) -> list[str]:
    rows, width, tokens, reads = shape
    generator = torch.Generator().manual_seed(0)
    ids = draw_ids(kind, tokens, reads, n_rows=rows, device="cpu", generator=generator).long()
    table, weights, grad = (
        torch.randn(*size, generator=generator)
        for size in ((rows, width), (tokens, reads), (tokens, width))
    )

    def step(bag: Bag, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        t, w = (tensor.to(dtype).requires_grad_() for tensor in (table, weights))
        output = bag(t, ids, w)
        return [output.detach(), *torch.autograd.grad(output, (t, w), grad.to(dtype))]

    exact = step(_torchs, torch.float64)
    errors = [
        float((found - expected).norm() / expected.norm())
        for found, expected in zip(step(weighted_bag), exact, strict=True)
    ]
    with torch.no_grad():
        forward = _in_turns(
            [lambda b=b: b(table, ids, weights) for b in (weighted_bag, _torchs)], repeats
        )
    both = _in_turns([lambda b=b: step(b) for b in (weighted_bag, _torchs)], repeats)
    cells = [f"{rows:,}", str(width), f"{tokens:,}", str(reads), kind]
    for ours, torchs in (forward, both):
        cells += [f"{ours:.2f}", f"{torchs:.2f}", f"{ours / torchs:.2f}"]
    return [*cells, ", ".join(f"{error:.0e}" for error in errors)]


def _torchs(table: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    return functional.embedding_bag(ids, table, per_sample_weights=weights, mode="sum")


def _in_turns(runs: list[Callable[[], object]], repeats: int) -> list[float]:
    """Return the median milliseconds of each, after two runs that do not count."""
    times: list[list[float]] = [[] for _ in runs]
    for repeat in range(repeats + 2):
        pairs = list(zip(runs, times, strict=True))
        # Who comes second finds the table in the cache.
        for run, own in pairs if repeat % 2 else reversed(pairs):
            start = time.perf_counter()
            run()
            if repeat >= 2:
                own.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(own) for own in times]


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    names = [
        line.split(":", 1)[1].strip()
        for line in (info.read_text().splitlines() if info.exists() else [])
        if line.startswith("model name")
    ]
    return names[0] if names else platform.processor() or platform.machine()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--markdown", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
