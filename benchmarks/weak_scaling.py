"""Tokens per second of one trial on several GPUs over one: every GPU has the same tokens a step.

    python benchmarks/weak_scaling.py                                    # dense and Memory+ 373m, one and two GPUs
    python benchmarks/weak_scaling.py --gpus 1,4 --layouts columns,rows  # rows of the tables too
    python benchmarks/weak_scaling.py --dense replicated,sharded         # dense parameters with FSDP2
    python benchmarks/weak_scaling.py --same-batch --precision fp32      # do several train as one does?
    python benchmarks/weak_scaling.py --text 'data/*.jsonl.gz' --schedule-steps 10000  # as in a trial
    python benchmarks/weak_scaling.py --folder /tmp/weak                 # prepares its text once
    python benchmarks/weak_scaling.py --profile /tmp/profiles            # where a step's time goes
    python benchmarks/weak_scaling.py --device cpu --preset d16 --tokens 512 --seq-len 64 --vocab-size 512

With `--same-batch` every number of GPUs trains on the batch of the most of them, so that losses can
be compared: "loss off by" is the largest difference from one GPU's loss, over that loss, of all
steps. One GPU passes the batch in as many micro-batches.

Without `--text` the text is drawn, and 18 % of its words are the same one. Without
`--schedule-steps` the learning rate is at its highest from the second step on. Reads then gather in
few rows, which weighs on tables sharded by rows: "busiest rank" is the reads of the rank that has
the most over the mean rank's, of the last report.

The loop is the trials' own (`workloads.training.train.run`): data, schedule, clipping, optimizer,
metrics. The ranks of a trial hold its memory tables together, and sum the gradients of all else.
Tables are updated row by row in bf16. The rate is the median of the later reports, after
compilation; "peak GB" is the most that a rank's torch held; "first step s" is from the start of
rank 0's run, imports left out. With `--profile` four steps of rank 0 run under torch.profiler
(`loop_profile.py`), which the rate leaves out by its median. With `--folder` the prepared text
stays there for the next run.
"""

import argparse
import json
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import torch
from gpu_required import require_gpu
from loop_profile import LAST, Profiled
from own_ranks import spawn_ranks
from training_speed import Rates, text

from orchestrator.sweep import registry
from workloads.training.rank_job import RankJob
from workloads.training.train import run

HEADS = (
    "architecture", "tables", "dense", "GPUs", "M tokens/s", "over one GPU", "peak GB", "loss",
    "loss off by", "busiest rank", "first step s",
)  # fmt: skip
LOG_EVERY = 5


def main() -> None:
    """Print one line per architecture, layout and number of GPUs."""
    arguments = _arguments()
    require_gpu(arguments.device)
    with tempfile.TemporaryDirectory() as name:
        shared = arguments.folder or Path(name)
        shared.mkdir(parents=True, exist_ok=True)
        if arguments.text is None and not (shared / "text.txt").exists():
            text(shared / "text.txt")
        _print_table(arguments, shared)


def _print_table(arguments: argparse.Namespace, shared: Path) -> None:
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    each = "pass of a GPU" if arguments.same_batch else "GPU and step"
    print(f"{device}, torch {torch.__version__}; {arguments.tokens:,} tokens a {each}")
    print("| " + " | ".join(HEADS) + " |\n" + "|---" * len(HEADS) + "|", flush=True)
    for name in arguments.only.split(","):
        layouts = arguments.layouts.split(",") if _has_tables(arguments, name) else ["-"]
        alone: dict[str, Any] | None = None
        for gpus in map(int, arguments.gpus.split(",")):
            # One rank has no parts: neither of tables nor of dense parameters.
            ways = [("-", "-")] if gpus == 1 else product(layouts, arguments.dense.split(","))
            for layout, dense in ways:
                found = _trained(arguments, name, layout, dense, gpus, shared)
                alone = found if gpus == 1 else alone
                over = off_by = ""
                if alone and arguments.same_batch:
                    # One GPU that passes all ranks' batch in pieces is no measure of speed.
                    off_by = _furthest(found, alone)
                elif alone:
                    over = f"{found['rate'] / alone['rate']:.3f}"
                cells = [name, layout, dense, str(gpus), f"{found['rate'] / 1e6:.4f}", over]
                cells += [f"{found['peak'] / 1e9:.1f}", f"{found['losses'][-1]:.4f}", off_by]
                cells += [found["busiest"], f"{found['first_s']:.0f}"]
                print("| " + " | ".join(cells) + " |", flush=True)


def _furthest(found: dict[str, Any], alone: dict[str, Any]) -> str:
    pairs = zip(found["losses"], alone["losses"], strict=True)
    return f"{max(abs(one - other) / one for other, one in pairs):.1e}"


def _has_tables(arguments: argparse.Namespace, name: str) -> bool:
    module = registry.architecture(name)
    config = module.Config(**module.PRESETS[arguments.preset])
    return bool(config.param_count(arguments.vocab_size).memory_values > 0)


def _trained(
    arguments: argparse.Namespace, name: str, layout: str, dense: str, gpus: int, shared: Path
) -> dict[str, Any]:
    """Train with as many ranks; return the rate of all, the largest peak, and the losses.

    The text is in `shared`, where it stays as it is prepared.
    """
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        spawn_ranks(gpus, _rank, arguments, name, layout, dense, gpus, folder, shared)
        found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(gpus)]
    return {**found[0], "peak": max(each["peak"] for each in found)}


def _rank(
    rank: int,
    arguments: argparse.Namespace,
    name: str,
    layout: str,
    dense: str,
    gpus: int,
    folder: Path,
    shared: Path,
) -> None:
    rates = Profiled() if arguments.profile and rank == 0 else Rates()
    most = max(map(int, arguments.gpus.split(",")))
    batch_tokens = arguments.tokens * (most if arguments.same_batch else gpus)
    # Tables as a large run has them, or so that sums are all that differs.
    precision = "fp32" if arguments.precision == "fp32" else "bf16"
    schedule_steps = arguments.schedule_steps or arguments.steps
    stop = arguments.steps * batch_tokens if schedule_steps > arguments.steps else None
    rowwise = {"table_optimizer": "rowwise", "table_precision": precision}
    run(
        RankJob(
            data={
                "source": "text",
                "path": arguments.text or str(shared / "text.txt"),
                "vocab_size": arguments.vocab_size,
                "valid_tokens": arguments.seq_len * most,
            },
            model={"architecture": name, **registry.architecture(name).PRESETS[arguments.preset]},
            train={
                "tokens": schedule_steps * batch_tokens,
                "stop_at_tokens": stop,
                "batch_tokens": batch_tokens,
                "seq_len": arguments.seq_len,
                "lr": 1e-3,
                "precision": arguments.precision,
                **(rowwise if _has_tables(arguments, name) else {}),
            },
            seed=0,
            checkpoints=folder / "checkpoints",
            cache=shared / "cache",
            log_every_steps=1 if arguments.same_batch else LOG_EVERY,
            evaluations=1,
            checkpoint_every_s=1e9,
            micro_batch_tokens=arguments.tokens if arguments.same_batch else None,
            device=arguments.device,
            rank=rank,
            world_size=gpus,
            memory_ranks=1 if layout == "-" else gpus,
            memory_layout="columns" if layout == "-" else layout,
            dense_parameters="replicated" if dense == "-" else dense,
            compile=not arguments.uncompiled,
            rendezvous=folder / "meet" if gpus > 1 else None,
        ),
        rates,
    )
    on_gpu = arguments.device == "cuda"
    found: dict[str, Any] = {"peak": torch.cuda.max_memory_allocated() if on_gpu else 0}
    if rank == 0:  # the only one that reports
        found |= {
            "rate": rates.after_compilation(),
            "losses": rates.losses,
            "busiest": rates.busiest,
            "first_s": rates.first_s,
        }
    (folder / f"{rank}.json").write_text(json.dumps(found))
    if isinstance(rates, Profiled):
        arguments.profile.mkdir(parents=True, exist_ok=True)
        rates.write(arguments.profile / f"{name}-{layout}-{dense}-{gpus}.json.gz")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", type=Path, help="where to write kernels and their times")
    parser.add_argument("--folder", type=Path, help="where the prepared text is kept")
    parser.add_argument("--text", help="files to train on, as data.path of a sweep")
    parser.add_argument(
        "--schedule-steps", type=int, help="of the trial whose first steps these are"
    )
    parser.add_argument("--only", default="dense,memory_plus", help="architectures")
    parser.add_argument("--preset", default="373m")
    parser.add_argument("--gpus", default="1,2", help="numbers of GPUs, one first")
    parser.add_argument("--layouts", default="columns", help="of tables: columns, rows or both")
    parser.add_argument("--dense", default="replicated", help="replicated, sharded or both")
    parser.add_argument("--tokens", type=int, default=32_768, help="of a GPU in a pass")
    parser.add_argument("--same-batch", action="store_true", help="for all numbers of GPUs")
    parser.add_argument("--precision", default="auto", help="auto (bf16 on a GPU) or fp32")
    parser.add_argument("--uncompiled", action="store_true")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    if arguments.profile and (arguments.device == "cpu" or arguments.steps <= LAST):
        parser.error(f"--profile needs a GPU and --steps above {LAST}, got {arguments.steps} steps")
    if arguments.schedule_steps is not None and arguments.schedule_steps < arguments.steps:
        parser.error(
            f"--schedule-steps must be at least --steps ({arguments.steps}), got "
            f"{arguments.schedule_steps}"
        )
    return arguments


if __name__ == "__main__":
    main()
