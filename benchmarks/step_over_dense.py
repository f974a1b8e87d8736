"""Time of an optimizer step over that of the dense model's, compiled and captured as trials train.

    python benchmarks/step_over_dense.py                       # every group of GROUPS
    python benchmarks/step_over_dense.py --only 373m,1.3b
    python benchmarks/step_over_dense.py --device cpu --small  # a rehearsal: d16, few tokens

Each size is a process of its own. Where it has several models, one process each fills the caches of
compiled kernels before, all at once. Then its models take turns: dense, the others, dense again, each alone on the
GPU. Each has its line at once. "over dense" divides by the first dense; "dense again" shows how much
the machine drifted. Medians of blocks of steps (`workloads/training/step/step_time.py`), with half their spread.
Tables are updated row by row in bf16 (`table_optimizer: rowwise`) where `rowwise` is said, and by
AdamW from the reads of a step where `deferred` is.
"""

import argparse
import gc
import json
import subprocess
import sys
import time
from typing import Any, NamedTuple

import torch
from gpu_required import require_gpu

from orchestrator.sweep import registry
from workloads.training.step.step_time import Setting, time_steps

ROWWISE = {"table_optimizer": "rowwise", "table_precision": "bf16"}
DEFERRED = {"table_optimizer": "deferred_adamw"}


class Group(NamedTuple):
    """What is compared with one dense model."""

    preset: str
    models: tuple[str, ...]
    batch_tokens: int
    seq_len: int
    vocab_size: int
    table: dict[str, str]


GROUPS = {
    "373m": Group("373m", ("memory_plus",), 32_768, 2048, 32_000, ROWWISE),
    "1.3b": Group("1.3b", ("memory_plus",), 16_384, 2048, 32_000, ROWWISE),
    "30m": Group(
        "30m", ("ultramem_v2", "memoryformer", "performer", "linformer"), 32_768, 512, 8192, {}
    ),
    "30m deferred": Group("30m", ("ultramem_v2",), 32_768, 512, 8192, DEFERRED),
    "30m rowwise": Group("30m", ("ultramem_v2",), 32_768, 512, 8192, ROWWISE),
}


def main() -> None:
    arguments = _arguments()
    require_gpu(arguments.device)
    if arguments.model:
        _timed(arguments.one, arguments.model, arguments)
        return
    if arguments.one:
        _group(arguments.one, arguments)
        return
    on_gpu = arguments.device == "cuda"
    print(f"{torch.cuda.get_device_name() if on_gpu else 'CPU'}, torch {torch.__version__}")
    heads = ("size", "model", "tokens a step", "ms", "+-", "over dense", "peak GB")
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|", flush=True)
    own = [word for word in sys.argv[1:] if word != "--only" and word != arguments.only]
    failed = []
    for name in arguments.only.split(","):
        if len(GROUPS[name].models) > 1:  # two large models would not fit beside one another
            _compile_at_once(name, own)
        done = subprocess.run([sys.executable, __file__, *own, "--one", name], check=False)
        failed += [name] if done.returncode else []
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def _compile_at_once(name: str, own: list[str]) -> None:
    """Take a few steps with each model of a size, in processes that run at once."""
    started_at = time.perf_counter()
    models = {"dense", *GROUPS[name].models}
    command = [sys.executable, __file__, *own, "--one", name, "--seconds", "0", "--model"]
    processes = [subprocess.Popen([*command, model]) for model in models]
    failed = sum(process.wait() != 0 for process in processes)  # an out-of-memory, say
    seconds = time.perf_counter() - started_at
    print(f"{name}: compiled in {seconds:.0f} s, {failed} failed", file=sys.stderr, flush=True)


def _group(name: str, arguments: argparse.Namespace) -> None:
    """Print the rows of one size."""
    rows: list[dict[str, Any]] = []
    for model in ("dense", *GROUPS[name].models, "dense"):
        try:
            found = _timed(name, model, arguments)
        except Exception as error:
            print(f"| {name} | {model} | failed: {error!r:.300} |", flush=True)
            if not rows:
                raise
            continue
        row = {**found, "model": "dense again" if model == "dense" and rows else model}
        rows.append(row)
        cells = [name, row["model"], f"{row['tokens']:,}", f"{1e3 * row['seconds']:.2f}"]
        cells += [f"{1e3 * row['spread']:.2f}", f"{row['seconds'] / rows[0]['seconds']:.3f}"]
        print("| " + " | ".join([*cells, f"{row['peak'] / 1e9:.1f}"]) + " |", flush=True)
        gc.collect()
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    if arguments.json:
        print(json.dumps(rows), flush=True)


def _timed(name: str, model: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return tokens and seconds of a step, half their spread, and the most memory held."""
    group = GROUPS[name]
    if arguments.small:
        group = group._replace(preset="d16", batch_tokens=1024, seq_len=64, vocab_size=256)
    fields = registry.architecture(model).PRESETS[group.preset]
    times = time_steps(
        [{"architecture": model, **fields}],
        {
            "tokens": 1000 * group.batch_tokens,
            "batch_tokens": group.batch_tokens,
            "seq_len": group.seq_len,
            "lr": 1e-3,
            **(group.table if model != "dense" else {}),
        },
        vocab_size=group.vocab_size,
        setting=Setting(device=arguments.device),
        budget_s=arguments.seconds,
    )
    on_gpu = arguments.device == "cuda"
    return {
        "tokens": group.batch_tokens,
        "seconds": times.median_s[0],
        "spread": times.spread_s[0],
        "peak": torch.cuda.max_memory_reserved() if on_gpu else 0,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(GROUPS), help="sizes, by commas")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=4.0, help="of timed steps, a model")
    parser.add_argument("--small", action="store_true", help="d16, few tokens")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
