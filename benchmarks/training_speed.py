"""Tokens per second of the real training loop beside a plain compiled torch script, in one run.

    python benchmarks/training_speed.py                              # 134m, 373m and 1.3b
    python benchmarks/training_speed.py --only d32,1m,3m             # small models
    python benchmarks/training_speed.py --only d32 --together 8      # eight processes on one GPU
    python benchmarks/training_speed.py --only d32 --together 8 --mps   # the same as trials of a sweep
    python benchmarks/training_speed.py --only 3m --ways off,on      # without and with compilation

Ours is `workloads.training.train.run`: data, learning-rate schedule, clipping, optimizer, usage,
metrics and progress, without evaluation and checkpoints. The peer (`plain_llama.py`) trains on one
batch that lies on the GPU: compiled blocks, fused AdamW, and for small models one CUDA graph per
step. Ours is the rate of the last reports, after compilation; the peer the median of its steps.
MFU: 6 N + attention (causal half), N without the embedding, over the data sheet's bf16 peak.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_required import require_gpu
from plain_llama import Shape, plain_step

from orchestrator.node.mps import MpsDaemon
from workloads.training.rank_job import RankJob
from workloads.training.train import run

SHAPES = {
    "d32": Shape(d_model=32, n_layers=2, n_heads=2, d_ff=88, vocab_size=2048, batch_tokens=8192, seq_len=128),
    "1m": Shape(d_model=128, n_layers=5, n_heads=4, d_ff=352, vocab_size=4096, batch_tokens=16384, seq_len=256),
    "3m": Shape(d_model=192, n_layers=6, n_heads=6, d_ff=616, vocab_size=4096, batch_tokens=16384, seq_len=256),
    "10m": Shape(d_model=320, n_layers=8, n_heads=5, d_ff=880, vocab_size=8192, batch_tokens=32768, seq_len=512),
    "30m": Shape(d_model=512, n_layers=10, n_heads=8, d_ff=1280, vocab_size=8192, batch_tokens=32768, seq_len=512),
    "134m": Shape(d_model=768, n_layers=12, n_heads=12, d_ff=2048, vocab_size=32000, batch_tokens=65536, seq_len=2048),
    "373m": Shape(d_model=1024, n_layers=24, n_heads=16, d_ff=2816, vocab_size=32000, batch_tokens=32768, seq_len=2048),
    "1.3b": Shape(d_model=2048, n_layers=22, n_heads=16, d_ff=5632, vocab_size=32000, batch_tokens=16384, seq_len=2048),
}  # fmt: skip
SMALL = ("d32", "1m", "3m", "10m")
PEAK_FLOPS = {"H100": 989.4e12, "H200": 989.4e12}


class Rates:
    """A reporter that keeps the rates."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        self.losses: list[float] = []
        self.busiest = ""
        """Reads of the rank with the most of them over the mean rank's, mean over the layers."""
        self.first_s = 0.0
        self._start = time.perf_counter()

    def metrics(self, step: int, values: dict[str, float]) -> None:
        if "train/tokens_per_s" in values:
            self.seen.append(values["train/tokens_per_s"])
            self.losses.append(values["train/loss"])
        if "memory/shard_max_over_mean" in values:
            self.busiest = f"{values['memory/shard_max_over_mean']:.2f}"

    def progress(self, step: int, steps: int, phase: str, values: dict[str, float]) -> None:
        if step == 1 and not self.first_s:
            self.first_s = time.perf_counter() - self._start

    def after_compilation(self) -> float:
        """Return the median of the later half, without the last report."""
        return statistics.median(self.seen[len(self.seen) // 2 : -1] or self.seen)

    def checkpoint(self, step: int, path: Path) -> None:
        pass

    def should_stop(self) -> bool:
        return False


def main() -> None:
    arguments = _arguments()
    require_gpu()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    head = ["size", "way", "at once", "M tokens/s", "over peer", "MFU", "first step s", "last loss"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text(folder / "text.txt")
        for size in arguments.only.split(","):
            shape = SHAPES[size]
            peer = peer_rate(shape, graph=size in SMALL, at_once=arguments.together)
            row(size, "plain torch", arguments.together, peer, peer, shape)
            for way in arguments.ways.split(","):
                found = ours(size, way, folder, arguments)
                rate = sum(each["rate"] for each in found)
                row(size, f"ours, compile {way}", len(found), rate, peer, shape, found[0])


def ours(size: str, way: str, folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return rates of the real loop, of as many processes as asked for."""
    context = multiprocessing.get_context("spawn")
    jobs = [
        context.Process(target=_train, args=(size, way, folder, seed, arguments.seconds))
        for seed in range(arguments.together)
    ]
    mps, before = MpsDaemon(), dict(os.environ)
    if arguments.mps:
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
        os.environ |= mps.environment(gpu)
        if os.environ.keys() == before.keys():
            raise SystemExit("--mps: MPS is not installed, or does not work, or runs already")
    try:
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
    finally:
        mps.close()
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
    return [
        json.loads((folder / f"{size}-{way}-{seed}.json").read_text())
        for seed in range(arguments.together)
    ]


def _train(size: str, way: str, folder: Path, seed: int, seconds: float) -> None:
    shape = SHAPES[size]
    guess = min(12e6, 0.5 * 400e12 / shape.flops_per_token)
    steps = max(60, min(4000, int(seconds * guess / shape.batch_tokens)))
    rates = Rates()
    run(
        RankJob(
            data={
                "source": "text",
                "path": str(folder / "text.txt"),
                "vocab_size": shape.vocab_size,
                "valid_tokens": shape.seq_len,
            },
            model={
                "architecture": "dense",
                "d_model": shape.d_model,
                "n_layers": shape.n_layers,
                "n_heads": shape.n_heads,
                "d_ff": shape.d_ff,
            },
            train={
                "tokens": steps * shape.batch_tokens,
                "batch_tokens": shape.batch_tokens,
                "seq_len": shape.seq_len,
                "lr": 1e-3,
            },
            seed=seed,
            checkpoints=folder / f"checkpoints-{size}-{way}-{seed}",
            cache=folder / "cache",
            log_every_steps=10,
            evaluations=1,
            checkpoint_every_s=1e9,
            compile=way == "on",
        ),
        rates,
    )
    found = {
        "rate": rates.after_compilation(),
        "first_s": rates.first_s,
        "loss": rates.losses[-1],
    }
    (folder / f"{size}-{way}-{seed}.json").write_text(json.dumps(found))


def peer_rate(shape: Shape, *, graph: bool, at_once: int) -> float:
    """Return tokens per second of the plain script; of several, a graph on a stream each."""
    streams = [torch.cuda.Stream() for _ in range(at_once)]
    steps = []
    for stream in streams:
        with torch.cuda.stream(stream):
            steps.append(plain_step(shape, graph=graph))

    def turn() -> None:
        for stream, step in zip(streams, steps, strict=True):
            with torch.cuda.stream(stream):
                step()

    for _ in range(4):
        turn()
    times = []
    for _ in range(9):
        torch.cuda.synchronize()
        start = time.perf_counter()
        n = 20 if graph else 3
        for _ in range(n):
            turn()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / n)
    steps.clear()
    torch.cuda.empty_cache()
    torch._dynamo.reset()
    return at_once * shape.batch_tokens / statistics.median(times)


def row(
    size: str,
    way: str,
    at_once: int,
    rate: float,
    peer: float,
    shape: Shape,
    found: dict[str, Any] | None = None,
) -> None:
    peak = next((v for k, v in PEAK_FLOPS.items() if k in torch.cuda.get_device_name()), 0.0)
    mfu = f"{rate * shape.flops_per_token / peak:.2f}" if peak else ""
    first, loss = (f"{found['first_s']:.1f}", f"{found['loss']:.3f}") if found else ("", "")
    cells = [size, way, str(at_once), f"{rate / 1e6:.3f}", f"{rate / peer:.2f}", mfu, first, loss]
    print("| " + " | ".join(cells) + " |", flush=True)


def text(path: Path) -> None:
    """Write 6 MB of words that follow a skewed distribution."""
    draws = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(draws.choice(letters, draws.integers(2, 9))) for _ in range(40_000)]
    ranks = np.minimum(draws.zipf(1.2, size=1_000_000) - 1, len(words) - 1)
    lines = [" ".join(words[i] for i in part) for part in np.array_split(ranks, 5_000)]
    path.write_text("\n\n".join(lines), encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="134m,373m,1.3b", help="sizes")
    parser.add_argument("--ways", default="on", help="on, off or both: compilation of ours")
    parser.add_argument("--together", type=int, default=1, help="trials on the GPU at once")
    parser.add_argument("--mps", action="store_true", help="as clients of CUDA's MPS")
    parser.add_argument("--seconds", type=float, default=8.0, help="about how long ours trains")
    return parser.parse_args()


if __name__ == "__main__":
    main()
