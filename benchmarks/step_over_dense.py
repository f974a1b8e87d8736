"""Time of an optimizer step over that of the dense model's, compiled and captured as trials train.

    python benchmarks/step_over_dense.py                       # every group of GROUPS
    python benchmarks/step_over_dense.py --only 373m,1.3b
    python benchmarks/step_over_dense.py --device cpu --small  # a rehearsal: d16, few tokens

Each size is a process of its own. Its models take turns: dense, the others, dense again, each alone
on the GPU. "over dense" divides by the mean of both; "dense again" shows how much the machine
drifted. Medians of blocks of steps (`workloads/training/step_time.py`), with half their spread.
Tables are updated row by row in bf16 (`table_optimizer: rowwise`) where `rowwise` is said, and by
AdamW from the reads of a step where `deferred` is.
"""

import argparse
import gc
import json
import subprocess
import sys
from typing import Any, NamedTuple

import torch

from orchestrator.sweep import registry
from workloads.training.step_time import Setting, time_steps

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
    "30m rowwise": Group("30m", ("ultramem_v2", "memoryformer"), 32_768, 512, 8192, ROWWISE),
}


def main() -> None:
    arguments = _arguments()
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
        done = subprocess.run([sys.executable, __file__, *own, "--one", name], check=False)
        failed += [name] if done.returncode else []
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def _group(name: str, arguments: argparse.Namespace) -> None:
    """Print the rows of one size."""
    group = GROUPS[name]
    if arguments.small:
        group = group._replace(preset="d16", batch_tokens=1024, seq_len=64, vocab_size=256)
    rows = []
    for number, model in enumerate(("dense", *group.models, "dense")):
        again = model == "dense" and number > 0
        table = group.table if model != "dense" else {}
        try:
            found = _timed(model, table, group, arguments)
        except Exception as error:
            print(f"| {name} | {model} | failed: {error!r:.300} |", flush=True)
            if model == "dense":
                raise
            continue
        rows.append({**found, "model": "dense again" if again else model})
        gc.collect()
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    dense_s = (rows[0]["seconds"] + rows[-1]["seconds"]) / 2
    for row in rows:
        cells = [name, row["model"], f"{group.batch_tokens:,}", f"{1e3 * row['seconds']:.2f}"]
        cells += [f"{1e3 * row['spread']:.2f}", f"{row['seconds'] / dense_s:.3f}"]
        print("| " + " | ".join([*cells, f"{row['peak'] / 1e9:.1f}"]) + " |", flush=True)
    if arguments.json:
        print(json.dumps(rows), flush=True)


def _timed(
    model: str, table: dict[str, str], group: Group, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return seconds of a step, half their spread, and the most memory held."""
    fields = registry.architecture(model).PRESETS[group.preset]
    times = time_steps(
        [{"architecture": model, **fields}],
        {
            "tokens": 1000 * group.batch_tokens,
            "batch_tokens": group.batch_tokens,
            "seq_len": group.seq_len,
            "lr": 1e-3,
            **table,
        },
        vocab_size=group.vocab_size,
        setting=Setting(device=arguments.device),
        budget_s=arguments.seconds,
    )
    on_gpu = arguments.device == "cuda"
    return {
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
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=4.0, help="of timed steps, a model")
    parser.add_argument("--small", action="store_true", help="d16, few tokens")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
