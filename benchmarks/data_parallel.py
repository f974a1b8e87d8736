"""Training passes on several ranks.

Gradients summed after the backward pass, during it, and by torch's DDP.

    python benchmarks/data_parallel.py --gpus 2 --only dense,memory_plus --preset 373m --tokens 16384
    python benchmarks/data_parallel.py --device cpu --gpus 2 --only dense --preset d32 --tokens 512 --seq-len 64

The script starts its own ranks; each has `--tokens` tokens in every step, cut into `--passes` micro
batches. A step is forward, loss and backward in bf16 autocast and the sum of all gradients, without
clipping and optimizer. The four ways take turns on the same model and the same tokens: `alone` sums
nothing, so it is what the others cannot beat; `after` starts every message when the backward pass
has ended; `during` is what `memscale` trains with; `ddp` is `DistributedDataParallel` with its
defaults but for gradients as views, and `no_sync` in all passes but the last. `hidden` is the share
of the time that summing afterwards costs which summing during the pass does not, and `-` where that
cost is within twice its standard error over the repeats. `apart` is the largest difference from
`after`'s gradients over their norm, of the parameter where it is largest; `again` is that of a second
pass of `after`, since not every kernel on a GPU repeats its bits. Medians, of the slowest rank.
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from gpu_required import require_gpu
from own_ranks import run_ranks
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from orchestrator.sweep import registry
from workloads.distributed import process_group
from workloads.distributed.mesh import Mesh
from workloads.sharding.gradient_allreduce import BUCKET_BYTES, GradientAllReduce
from workloads.training import device as devices
from workloads.training.step.train_step import accumulate_gradients

WAYS = ("alone", "after", "during", "ddp")


def main() -> None:
    arguments = _arguments()
    require_gpu(arguments.device)
    line = "| " + " | ".join(["{}"] * len(COLUMNS)) + " |"
    if not arguments.markdown:
        line = "{:14}  {:>9}" + "  {:>9}" * 4 + "  {:>7}  {:>13}" + "  {:>9}" * 3
    on = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    print(f"{arguments.gpus} x {on}, torch {torch.__version__}, {arguments}\n")
    print(line.format(*COLUMNS))
    if arguments.markdown:
        print(line.format(*["---"] * len(COLUMNS)))
    sys.stdout.flush()  # the ranks print the rest
    run_ranks(arguments.gpus, arguments.device, partial(_all, arguments, line))


def _all(
    arguments: argparse.Namespace, line: str, world: process_group.RankGroup, here: torch.device
) -> None:
    for name in arguments.only.split(","):
        row = _measured(name, world, here, arguments)
        if world.is_main:
            _print(row, line)


def _measured(
    name: str, world: process_group.RankGroup, here: torch.device, arguments: argparse.Namespace
) -> dict[str, Any]:
    module = registry.architecture(name)
    with here:
        model = module.Config(**module.PRESETS[arguments.preset]).build(arguments.vocab_size)
    draw = torch.Generator(here).manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.02, generator=draw)
        for buffer in model.buffers():
            buffer.zero_()
    mesh = Mesh(world=world, data=world)
    sums, alone = (
        GradientAllReduce(model, over, bucket_bytes=int(arguments.bucket_mib * 2**20))
        for over in (mesh, Mesh())
    )
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    draw = torch.Generator().manual_seed(world.rank)
    n = arguments.tokens // arguments.seq_len
    windows = torch.randint(arguments.vocab_size, (n, arguments.seq_len + 1), generator=draw)
    accumulate = partial(
        accumulate_gradients,
        windows=windows.to(here),
        batch_tokens=arguments.tokens * world.size,
        passes=arguments.passes,
        autocast=partial(devices.autocast, bf16=here.type == "cuda", device=here),
    )

    def ours(sums: GradientAllReduce, during: bool) -> None:
        accumulate(model, before_last=sums.start if during else _nothing)
        sums.finish()

    def theirs() -> None:
        for i, part in enumerate(windows.to(here).tensor_split(arguments.passes)):
            last = i == arguments.passes - 1
            with nullcontext() if last else parallel.no_sync():
                accumulate(parallel, windows=part, passes=1)

    steps: dict[str, Callable[[], None]] = {
        "alone": partial(ours, alone, False),
        "after": partial(ours, sums, False),
        "during": partial(ours, sums, True),
        "ddp": theirs,
    }
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    gradients: dict[str, dict[str, Tensor]] = {}
    for repeat in range(arguments.warmup + arguments.repeats):
        for way in WAYS:
            for parameter in model.parameters():
                parameter.grad = None
            took = _timed(steps[way], world, here)
            if repeat >= arguments.warmup:
                seconds[way].append(took)
            elif repeat < 2 and way != "alone":
                gradients[way if repeat == 0 else f"{way} again"] = {
                    key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None
                }
    # DDP takes the mean over ranks.
    apart = {
        way: max(
            _apart(times * gradients[way][key], grad) for key, grad in gradients["after"].items()
        )
        for way, times in (("after again", 1), ("during", 1), ("ddp", world.size))
    }
    medians = {
        way: max(world.all_gather_objects(statistics.median(values)))
        for way, values in seconds.items()
    }
    return {
        "architecture": name,
        "params": sum(p.numel() for p in model.parameters()),
        "seconds": medians,
        "noise_s": max(world.all_gather_objects(_noise_s(seconds))),
        "apart": apart,
    }


def _noise_s(seconds: dict[str, list[float]]) -> float:
    """Return twice the standard error of what summing afterwards costs, in seconds."""
    costs = [after - alone for after, alone in zip(seconds["after"], seconds["alone"], strict=True)]
    return 2 * statistics.stdev(costs) / math.sqrt(len(costs)) if len(costs) > 1 else math.inf


def _nothing() -> None:
    pass


def _apart(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.norm().clamp(min=1e-30))


def _timed(step: Callable[[], None], world: process_group.RankGroup, here: torch.device) -> float:
    _wait(here)
    world.barrier()
    _wait(here)
    start = time.perf_counter()
    step()
    _wait(here)
    return time.perf_counter() - start


def _wait(here: torch.device) -> None:
    if here.type == "cuda":
        torch.cuda.synchronize(here)


COLUMNS = (
    "architecture", "params", "alone ms", "after ms", "during ms", "DDP ms", "hidden", "hidden by DDP", "again",
    "apart", "DDP apart",
)  # fmt: skip


def _print(row: dict[str, Any], line: str) -> None:
    s = row["seconds"]
    cost = s["after"] - s["alone"]
    print(
        line.format(
            row["architecture"],
            f"{row['params'] / 1e6:,.1f} M",
            *(f"{1e3 * s[way]:.2f}" for way in WAYS),
            *(
                f"{(s['after'] - s[way]) / cost:.0%}" if cost > row["noise_s"] else "-"
                for way in ("during", "ddp")
            ),
            *(f"{row['apart'][way]:.1e}" for way in ("after again", "during", "ddp")),
        ),
        flush=True,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=2, help="ranks")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default="dense,memory_plus", help="architectures")
    parser.add_argument("--preset", default="134m")
    parser.add_argument("--tokens", type=int, default=16_384, help="per rank and step")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--bucket-mib", type=float, default=BUCKET_BYTES / 2**20)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--markdown", action="store_true", help="print a table in Markdown")
    return parser.parse_args()


if __name__ == "__main__":
    main()
