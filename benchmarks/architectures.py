"""Training steps of every architecture side by side.

Seconds, tokens per second, memory, and what observing costs.

    python benchmarks/architectures.py --preset 1m --tokens 4096            # all, on this machine's best device
    python benchmarks/architectures.py --preset 134m --tokens 65536 --only dense,moe,memory_plus --markdown

A step is forward, loss, backward, clip and optimizer, in bf16 autocast on a GPU and fp32 on a CPU,
on random tokens. Steps with and without recording the use of memories and experts (`usage`) take
turns, so that both see the same machine; medians of each are compared. Every model is also checked:
finite loss, and a loss that falls on one batch.
"""

import argparse
import dataclasses
import json
import math
import statistics
import sys
import time
import traceback
from functools import partial

import torch

from orchestrator.sweep import registry
from workloads.training import device as devices
from workloads.training.config import TrainConfig
from workloads.training.memory_estimate.peak_memory import training_memory
from workloads.training.optimizer.table_optimizer import RULE_OF
from workloads.training.step.step_time import block_s, fresh_step


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured of one architecture."""

    architecture: str
    preset: str
    total_params: int
    active_params: int
    training_flops_per_token: float
    step_s: float
    observed_s: float | None
    tokens_per_s: float
    tflops_per_s: float
    peak_bytes: float | None
    estimate_bytes: float
    first_loss: float
    last_loss: float


def main() -> None:
    arguments = _arguments()
    names = arguments.only.split(",") if arguments.only else registry.architectures()
    here = devices.pick(arguments.device, rank=0)
    rows, failed = [], {}
    for name in names:
        module = registry.architecture(name)
        preset = arguments.preset if arguments.preset in module.PRESETS else arguments.otherwise
        if preset not in module.PRESETS:
            failed[name] = f"no preset {arguments.preset} or {arguments.otherwise}"
            continue
        try:
            config = module.Config(**module.PRESETS[preset])
            rows.append(_measured(name, preset, config, arguments, here))
            print(f"{name}: {rows[-1].step_s:.4f} s", file=sys.stderr, flush=True)
        except Exception as error:
            traceback.print_exc()
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
        if here.type == "cuda":
            torch.cuda.empty_cache()
    _print(rows, failed, arguments, here)
    if failed:
        raise SystemExit(1)


def _measured(
    name: str, preset: str, config: object, arguments: argparse.Namespace, here: torch.device
) -> Row:
    vocab, seq, tokens = arguments.vocab_size, arguments.seq_len, arguments.tokens
    bf16 = here.type == "cuda" and not arguments.fp32
    train = TrainConfig(
        tokens=tokens,
        batch_tokens=tokens,
        seq_len=seq,
        lr=1e-3,
        table_optimizer=arguments.table_optimizer,
        table_precision=arguments.table_precision,
    )
    n = tokens // seq
    rows = max(1, arguments.micro // seq) if arguments.micro else n
    training = fresh_step(
        config,
        train,
        vocab_size=vocab,
        here=here,
        passes=-(-n // rows),
        autocast=partial(devices.autocast, bf16=bf16, device=here),
    )
    model = training.model
    sparse = bool(model.statistics() or _observes(model))
    draw = torch.Generator().manual_seed(0)
    windows = torch.randint(vocab, (n, seq + 1), generator=draw).to(here)
    step = partial(training, windows, lr=train.lr)

    def step_s(observing: bool) -> float:
        model.recording_usage = observing
        return block_s(step, 1, here=here, clock=time.perf_counter)

    with devices.numerics(here, n_threads=arguments.threads, bf16=bf16):
        first = step()["loss"].item()
        for i in range(arguments.warmup):
            step_s(i % 2 == 0)
        if here.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        plain, observed = [], []
        for _ in range(arguments.repeats):
            plain.append(step_s(False))
            if sparse:
                observed.append(step_s(True))
        last = step()["loss"].item()
    peak = torch.cuda.max_memory_allocated() if here.type == "cuda" else None
    if not (math.isfinite(last) and last < first):
        raise RuntimeError(f"loss went from {first:.4f} to {last:.4f} on one batch")
    seconds = statistics.median(plain)
    flops = 3 * config.flops_per_token(vocab, seq).total
    return Row(
        architecture=name,
        preset=preset,
        total_params=config.param_count(vocab).total,
        active_params=config.active_param_count(vocab),
        training_flops_per_token=flops,
        step_s=seconds,
        observed_s=statistics.median(observed) if observed else None,
        tokens_per_s=tokens / seconds,
        tflops_per_s=flops * tokens / seconds / 1e12,
        peak_bytes=peak,
        estimate_bytes=training_memory(
            config,
            vocab,
            train,
            precision="bf16" if bf16 else "fp32",
            micro_batch_tokens=min(tokens, rows * seq),
        ).peak,
        first_loss=first,
        last_loss=last,
    )


def _observes(model: torch.nn.Module) -> bool:
    from workloads.layers.modules.usage_stats import Usage

    return any(isinstance(module, Usage) for module in model.modules())


def _print(
    rows: list[Row], failed: dict[str, str], arguments: argparse.Namespace, here: torch.device
) -> None:
    if arguments.json:
        print(json.dumps([dataclasses.asdict(row) for row in rows]))
        return
    machine = (
        torch.cuda.get_device_name() if here.type == "cuda" else f"CPU, {arguments.threads} threads"
    )
    print(
        f"\n{machine}, torch {torch.__version__}, {arguments.tokens:,} tokens a step, "
        f"sequences of {arguments.seq_len}, vocabulary {arguments.vocab_size:,}, median of {arguments.repeats}\n"
    )
    heads = [
        "architecture", "preset", "total params", "active", "training MFLOP/token", "step ms", "tokens/s", "vs dense", "TFLOP/s",
        "peak GiB", "estimate GiB", "observing",
    ]  # fmt: skip
    dense = next((row.step_s for row in rows if row.architecture == "dense"), None)
    lines = []
    for row in rows:
        lines.append(
            [
                row.architecture,
                row.preset,
                f"{row.total_params / 1e6:,.1f} M",
                f"{row.active_params / 1e6:,.1f} M",
                f"{row.training_flops_per_token / 1e6:,.1f}",
                f"{1e3 * row.step_s:,.1f}",
                f"{row.tokens_per_s:,.0f}",
                "" if dense is None else f"{dense / row.step_s:.2f}",
                f"{row.tflops_per_s:,.3g}",
                "" if row.peak_bytes is None else f"{row.peak_bytes / 2**30:.2f}",
                f"{row.estimate_bytes / 2**30:.2f}",
                ""
                if row.observed_s is None
                else f"{100 * (row.observed_s / row.step_s - 1):+.1f} %",
            ]
        )
    widths = [max(len(r[i]) for r in [heads, *lines]) for i in range(len(heads))]
    for i, line in enumerate([heads, *lines]):
        cells = [
            c.ljust(w) if j == 0 else c.rjust(w)
            for j, (c, w) in enumerate(zip(line, widths, strict=True))
        ]
        print("| " + " | ".join(cells) + " |" if arguments.markdown else "  ".join(cells))
        if i == 0 and arguments.markdown:
            print("|" + "|".join("---" for _ in heads) + "|")
    for name, why in failed.items():
        print(f"failed: {name}: {why}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="d32")
    parser.add_argument(
        "--otherwise", default="160m", help="preset of architectures without that one"
    )
    parser.add_argument("--only", default="", help="names, by commas")
    parser.add_argument("--tokens", type=int, default=4096, help="per step")
    parser.add_argument("--micro", type=int, default=0, help="tokens per forward pass; 0: all")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--table-optimizer",
        default="adamw",
        choices=["adamw", *RULE_OF],
        help="of memory tables",
    )
    parser.add_argument(
        "--table-precision", default="fp32", choices=["fp32", "bf16", "bf16_master"]
    )
    parser.add_argument("--fp32", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
