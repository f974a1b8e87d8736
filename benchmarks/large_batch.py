"""Whether steps hold a paper's batch on one GPU: peak memory beside its estimate, and tokens/s.

    python benchmarks/large_batch.py                                  # 134m, 2^15 and 2^23 tokens
    python benchmarks/large_batch.py --table-optimizer deferred_adamw --preset 373m
    python benchmarks/large_batch.py --device cpu --preset d16 --batches 2048,8192 --tokens 512 --seq-len 64 --vocab-size 512

A batch is passed in micro-batches of `--tokens`. Reads of tables that wait for the update are
summed by row meanwhile (docs/table-optimizers.md, "Micro-batches"), so the peak is bounded by the
table and the micro-batch, not by the batch. The loop is the trials' own
(`workloads.training.train.run`). The rate is of the last of `--steps` steps; "estimate" is what
`plan` asks a GPU for.
"""

import argparse
import multiprocessing
import tempfile
from pathlib import Path
from typing import Any

import torch
from gpu_required import require_gpu
from training_speed import Rates, text

from orchestrator.sweep import registry
from workloads.training.rank_job import RankJob
from workloads.training.train import run

HEADS = ("batch", "micro-batches", "K tokens/s", "peak GiB", "estimate GiB", "first loss", "last")


def main() -> None:
    arguments = _arguments()
    require_gpu(arguments.device)
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    print(f"{device}, torch {torch.__version__}; {arguments.only} {arguments.preset}, ", end="")
    print(f"{arguments.table_optimizer}, micro-batches of {arguments.tokens:,} tokens\n")
    print("| " + " | ".join(HEADS) + " |\n" + "|---" * len(HEADS) + "|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        text(Path(name) / "text.txt")
        for batch in map(int, arguments.batches.split(",")):
            # Each in a process of its own, so that no peak is the one before it.
            job = multiprocessing.get_context("spawn").Process(
                target=_row, args=(arguments, batch, Path(name))
            )
            job.start()
            job.join()


def _row(arguments: argparse.Namespace, batch: int, folder: Path) -> None:
    module = registry.architecture(arguments.only)
    preset = module.PRESETS[arguments.preset]
    train: dict[str, Any] = {
        "tokens": arguments.steps * batch,
        "batch_tokens": batch,
        "seq_len": arguments.seq_len,
        "lr": 1e-3,
        "table_optimizer": arguments.table_optimizer,
        "table_precision": "bf16",
    }
    rates = Rates()
    data = {
        "source": "text",
        "path": str(folder / "text.txt"),
        "vocab_size": arguments.vocab_size,
        "valid_tokens": arguments.seq_len,
    }
    job = RankJob(
        data=data,
        model={"architecture": arguments.only, **preset},
        train=train,
        seed=0,
        checkpoints=folder / f"checkpoints-{batch}",
        cache=folder / "cache",
        log_every_steps=1,
        evaluations=1,
        checkpoint_every_s=1e9,
        micro_batch_tokens=arguments.tokens,
        activation_checkpointing=False,
        device=arguments.device,
    )
    run(job, rates)
    estimate = registry.training_memory().training_memory(
        module.Config(**preset),
        arguments.vocab_size,
        registry.build_config(registry.train_config(), train),
        precision="bf16" if arguments.device == "cuda" else "fp32",
        micro_batch_tokens=min(arguments.tokens, batch),
    )
    peak = torch.cuda.max_memory_allocated() if arguments.device == "cuda" else 0
    cells = [f"{batch:,}", f"{max(1, batch // arguments.tokens)}", f"{rates.seen[-1] / 1e3:.1f}"]
    cells += [f"{peak / 2**30:.1f}", f"{estimate.peak / 2**30:.1f}"]
    cells += [f"{rates.losses[0]:.3f}", f"{rates.losses[-1]:.3f}"]
    print("| " + " | ".join(cells) + " |", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="memory_plus", help="the architecture")
    parser.add_argument("--preset", default="134m")
    parser.add_argument("--batches", default="32768,8388608", help="tokens of a step, by commas")
    parser.add_argument("--tokens", type=int, default=32_768, help="of a micro-batch")
    parser.add_argument("--table-optimizer", default="rowwise")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return parser.parse_args()


if __name__ == "__main__":
    main()
