"""Training steps with dense parameters replicated or sharded with FSDP2.

    python benchmarks/dense_sharding.py --gpus 2 --only dense,memory_plus --preset 373m --tokens 16384
    python benchmarks/dense_sharding.py --device cpu --gpus 2 --only dense --preset d32 --tokens 512 --seq-len 64

The script starts its own ranks, anew for each way; each has `--tokens` tokens in every step, in
`--passes` micro batches. A step is forward, loss and backward in bf16 autocast, the sums of all
gradients, clipping and AdamW. "peak" is the most memory that torch held on a GPU in these steps,
"held" what it holds between two of them: weights and moments. The loss of the last step is that of
both ways, up to the order of sums. Medians of steps, of the slowest rank.
"""

import argparse
import gc
import statistics
import time
from functools import partial
from typing import get_args

import torch
from gpu_required import require_gpu
from own_ranks import run_ranks

from orchestrator.sweep import registry
from workloads.distributed import process_group
from workloads.distributed.local_part import local_shard
from workloads.distributed.mesh import Mesh
from workloads.sharding.materialise import Dense, materialise_model
from workloads.training import device as devices
from workloads.training.config import TrainConfig
from workloads.training.step.train_step import TrainStep

COLUMNS = ("architecture", "params", "dense parameters", "step ms", "peak GB", "held GB", "loss")


def main() -> None:
    arguments = _arguments()
    require_gpu(arguments.device)
    line = "| " + " | ".join(["{}"] * len(COLUMNS)) + " |"
    if not arguments.markdown:
        line = "{:14}  {:>9}  {:>17}" + "  {:>9}" * 4
    on = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    print(f"{arguments.gpus} x {on}, torch {torch.__version__}, {arguments}\n")
    print(line.format(*COLUMNS))
    if arguments.markdown:
        print(line.format(*["---"] * len(COLUMNS)))
    for name in arguments.only.split(","):
        for dense in get_args(Dense):
            work = partial(_measured, name, dense, arguments)
            row = run_ranks(arguments.gpus, arguments.device, work)
            print(
                line.format(
                    name,
                    f"{row['params'] / 1e6:,.1f} M",
                    dense,
                    f"{1e3 * row['seconds']:.1f}",
                    f"{row['peak'] / 1e9:.2f}",
                    f"{row['held'] / 1e9:.2f}",
                    f"{row['loss']:.4f}",
                ),
                flush=True,
            )


def _measured(
    name: str,
    dense: Dense,
    arguments: argparse.Namespace,
    world: process_group.RankGroup,
    here: torch.device,
) -> dict[str, float]:
    """Return the largest numbers of any rank."""
    module = registry.architecture(name)
    config = module.Config(**module.PRESETS[arguments.preset])
    mesh = Mesh(world=world, data=world)
    make = partial(config.build, arguments.vocab_size)
    model = materialise_model(make, mesh, layout="columns", here=here, dense=dense).train()
    with torch.no_grad():
        for parameter in model.parameters():
            # The same everywhere, so that both ways have one loss whoever holds what.
            local_shard(parameter).fill_(1.0 if parameter.ndim == 1 else 0.01)
        for buffer in model.buffers():
            buffer.zero_()
    batch_tokens = arguments.tokens * world.size
    train = TrainConfig(
        tokens=100 * batch_tokens, batch_tokens=batch_tokens, seq_len=arguments.seq_len, lr=1e-3
    )
    draw = torch.Generator().manual_seed(world.rank)
    n = arguments.tokens // arguments.seq_len
    windows = torch.randint(arguments.vocab_size, (n, arguments.seq_len + 1), generator=draw)
    windows = windows.to(here)
    autocast = partial(devices.autocast, bf16=here.type == "cuda", device=here)
    step = TrainStep(model, train, mesh, passes=arguments.passes, autocast=autocast)
    seconds, loss = [], torch.zeros(())
    gc.collect()
    if here.type == "cuda":
        torch.cuda.reset_peak_memory_stats(here)
    for repeat in range(arguments.warmup + arguments.repeats):
        _wait(here)
        world.barrier()
        start = time.perf_counter()
        losses = step(windows, lr=train.lr)
        _wait(here)
        loss = losses["loss"]
        if repeat >= arguments.warmup:
            seconds.append(time.perf_counter() - start)
    on_gpu = here.type == "cuda"
    own = {
        "params": sum(p.numel() for p in model.parameters()),
        "seconds": statistics.median(seconds),
        "peak": torch.cuda.max_memory_allocated(here) if on_gpu else 0,
        "held": torch.cuda.memory_allocated(here) if on_gpu else 0,
        "loss": float(loss),
    }
    of_all = world.all_gather_objects(own)
    return {key: max(each[key] for each in of_all) for key in own}


def _wait(here: torch.device) -> None:
    if here.type == "cuda":
        torch.cuda.synchronize(here)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=2, help="ranks, each with a GPU of its own")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", default="dense", help="architectures, separated by commas")
    parser.add_argument("--preset", default="134m")
    parser.add_argument("--tokens", type=int, default=16384, help="of a rank in a step")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--passes", type=int, default=1, help="micro batches")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--markdown", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
