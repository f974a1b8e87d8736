"""Seconds from the launch of a trial to its first step, for the trials of one sweep in turn.

    python benchmarks/start_times.py                          # four trials of dense 3m on one GPU
    python benchmarks/start_times.py --device cpu --preset d16 --trials 2
    python benchmarks/start_times.py --gpus 0.125             # eight at once, as clients of MPS
    python benchmarks/start_times.py --gpus 0.125 --trials 8 --profile    # and why, in a minute

The first trial prepares the data and fills the caches of compiled kernels. The later ones are what
most trials of a sweep are. Phases are those of the journal's event `first_step`
(docs/metrics.md). `memscale submit` runs the sweep with its defaults: Ray, fork server, exporter.

`--profile` runs three sweeps in one runs folder: one trial that fills the caches, one alone, and
`--trials` at once, each trial in a process of its own. It adds tables of where their seconds went
(`start_profile.py`).
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import start_profile
import torch
import yaml
from gpu_required import require_gpu
from training_speed import text
from trial_parts import launched_at

from orchestrator.records.sweep_dir import SweepDir

PHASES = ("launch", "rank", "data", "model", "start", "total")


def main() -> None:
    arguments = _arguments()
    require_gpu(arguments.device)
    on_gpu = arguments.device == "cuda"
    print(f"{torch.cuda.get_device_name() if on_gpu else 'CPU'}, torch {torch.__version__}")
    ways = {"start": arguments.trials}
    if arguments.profile:
        ways = {"cold": 1, "alone": 1, "together": arguments.trials}
    profiles = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(arguments.keep or name)
        folder.mkdir(parents=True, exist_ok=True)
        text(folder / "text.txt")
        for way, trials in ways.items():
            environment = dict(os.environ) if on_gpu else {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
            if arguments.profile:
                environment |= start_profile.install(folder / "profiles" / way)
            started_at = time.time()
            submit(way, trials, folder, arguments, environment)
            print(f"\n{way}\n")
            sweep = SweepDir(folder / "runs" / way)
            planned_s = sweep.submission(1)["submitted_at"] - started_at
            until_s = min(launched_at(t.attempts()[0]) for t in sweep.trials()) - started_at
            print(f"{planned_s:.1f} s to the plan's end, {until_s:.1f} s to the first launch\n")
            table(sweep)
            profiles[way] = start_profile.read(folder / "profiles" / way)
        if arguments.profile:
            start_profile.tables(profiles)


def submit(
    way: str,
    trials: int,
    folder: Path,
    arguments: argparse.Namespace,
    environment: dict[str, str],
) -> None:
    """Run a sweep of some trials to its end."""
    on_gpu = arguments.device == "cuda"
    sweep: dict[str, Any] = {
        "name": way,
        "data": {"source": "text", "path": str(folder / "text.txt"), "vocab_size": 4096},
        "model": {"architecture": arguments.architecture, "preset": arguments.preset},
        "train": {"tokens": 2**14 * 100, "batch_tokens": 2**14, "seq_len": 256, "lr": 1e-3},
        "resources": {"gpus": arguments.gpus if on_gpu else 0, "cpus": arguments.cpus},
        "logging": {"evaluations": 1},
        "seeds": list(range(trials)),
    }
    if not on_gpu:
        sweep["train"] |= {"tokens": 2**11, "batch_tokens": 2**9}
    file = folder / f"{way}.yaml"
    file.write_text(yaml.safe_dump(sweep), encoding="utf-8")
    command = [sys.executable, "-m", "orchestrator.cli", "submit", str(file), "--quiet"]
    command += ["--runs", str(folder / "runs")]
    if not on_gpu:
        command += ["--cpus", str(arguments.cpus * arguments.trials)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)


def table(sweep: SweepDir) -> None:
    """Print seconds by phase, a trial a line, in the order of their launches."""
    print("| trial | " + " | ".join(f"{phase} s" for phase in PHASES) + " |")
    print("|---" * (1 + len(PHASES)) + "|")
    attempts = [trial.attempts()[0] for trial in sweep.trials() if trial.attempts()]
    attempts.sort(key=launched_at)
    for number, attempt in enumerate(attempts, start=1):
        events = (line.event for line in attempt.lines() if line.event is not None)
        seconds = next(e["seconds"] for e in events if e["event"] == "first_step")
        cells = (f"{seconds.get(phase, 0.0):.2f}" for phase in PHASES)
        print(f"| {number} | " + " | ".join(cells) + " |", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--architecture", default="dense")
    parser.add_argument("--preset", default="3m")
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--gpus", type=float, default=1, help="of a trial")
    parser.add_argument("--cpus", type=int, default=1, help="of a trial")
    parser.add_argument("--profile", action="store_true", help="say where the seconds went")
    parser.add_argument("--keep", help="folder for the sweep; default: a temporary one")
    return parser.parse_args()


if __name__ == "__main__":
    main()
