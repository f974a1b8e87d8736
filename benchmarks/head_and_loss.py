"""Times head and loss of our training step on one GPU, beside other kernels that fuse the two.

    python benchmarks/head_and_loss.py                                 # ours, a minute
    python benchmarks/head_and_loss.py --beside ours_and.py:fused      # and your function

`--beside FILE:FUNCTION` may be given several times. The function takes hidden states (tokens x
d_model, bf16), the weight of the head (vocabulary x d_model, fp32) and targets (tokens), and
returns the summed cross-entropy in nats, with gradients of the first two.

A line is forward and backward of one size in ms (median), what they need beside the inputs at their
peak, and the loss. Ours is the graph that trials compile
(`workloads/training/step/compilation.py`).
"""

import argparse
import runpy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from gpu_required import require_gpu
from gpu_timing import median_ms
from torch import Tensor
from torch.nn import functional

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
LINE = "| {} | {} | {} | {} | {} |"


class Size(NamedTuple):
    """A batch as trials of one preset have it."""

    preset: str
    tokens: int
    d_model: int
    vocab_size: int


SIZES = (
    Size("3m", 16_384, 192, 8_192),
    Size("30m", 32_768, 512, 8_192),
    Size("134m", 32_768, 768, 32_000),
    Size("1.3b", 16_384, 2_048, 32_000),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--beside", action="append", default=[], metavar="FILE:FUNCTION")
    losses: dict[str, Loss] = {"ours": _ours}
    for named in parser.parse_args().beside:
        file, _, function = named.rpartition(":")
        if not Path(file).is_file():
            parser.error(f"--beside {named}: no file {file!r}; write FILE:FUNCTION")
        losses[named] = runpy.run_path(file)[function]
    require_gpu()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(LINE.format("size", "head and loss", "ms", "GB more", "loss, nats per token"))
    print("|---|---|---|---|---|")
    for size in SIZES:
        for name, loss in losses.items():
            _line(size, name, loss)


@partial(torch.compile, dynamic=False)
def _ours(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Compute what `compilation._head_loss` does, for a head that is a matrix of its own."""
    with torch.autocast(x.device.type, torch.bfloat16):
        logits = functional.linear(x, weight)
    return functional.cross_entropy(logits.float(), targets, reduction="sum")


def _line(size: Size, name: str, loss: Loss) -> None:
    torch.manual_seed(0)
    x = torch.randn(size.tokens, size.d_model, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(size.vocab_size, size.d_model, device="cuda") * 0.02
    targets = torch.randint(size.vocab_size, (size.tokens,), device="cuda")
    x.requires_grad_()
    weight.requires_grad_()

    def both() -> Tensor:
        x.grad = weight.grad = None
        value = loss(x, weight, targets)
        value.backward()
        return value.detach()

    both()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    value = float(both()) / size.tokens
    gigabytes = (torch.cuda.max_memory_allocated() - before) / 1e9
    ms = median_ms(both)
    numbers = (f"{ms:.2f}", f"{gigabytes:.2f}", f"{value:.5f}")
    print(LINE.format(size.preset, name, *numbers), flush=True)


if __name__ == "__main__":
    main()
