"""Wall time of a sweep of small trials that share one GPU, from `memscale submit` to its end.

    python benchmarks/packed_trials.py                        # 64 trials of d32, eighths of a GPU
    python benchmarks/packed_trials.py --peer PATH            # beside the code in that folder
    python benchmarks/packed_trials.py --share 16 --ways mps,again
    python benchmarks/packed_trials.py --device cpu --small   # a rehearsal: four trials of two steps

16 seeds x 4 learning rates, 5 M tokens each. Ways: `mps` is what `resources: {gpus: 0.125}` gives,
processes that compute at once as clients of MPS; `again` the same sweep with other seeds in the
same runs folder, so that caches are warm; `turns` the same without MPS; `peer` other code, as given
by `--peer` (a checkout of another version), which may know neither MPS nor compilation. Each but
`again` begins with empty caches. "planned" is from the command to the submission's record, "until"
from the command to the first launch of a trial, "all trials" from there to the last result, "to the
end" from the command to its exit. "over first" is the time to the last result over that of the
first way. "processes" are those that trained: fewer than trials where a rank takes several, one
after another. Below each way stands where the seconds of its trials went (`trial_parts.py`).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from gpu_required import require_gpu
from training_speed import SHAPES, text
from trial_parts import table

from orchestrator.records.sweep_dir import SweepDir

RATES = (3e-4, 1e-3, 3e-3, 1e-2)
COLUMNS = ("way", "trials", "to last result s", "planned s", "until s", "all trials s")
COLUMNS += ("to the end s", "M tokens/s", "over first", "processes")


class Done(NamedTuple):
    """One sweep that was run."""

    planned_s: float
    until_s: float
    trials_s: float
    wall_s: float
    n_processes: int
    sweep: Path
    """Its folder."""

    @property
    def result_s(self) -> float:
        """Seconds from the command to the last result."""
        return self.until_s + self.trials_s


def main() -> None:
    arguments = _arguments()
    require_gpu(arguments.device)
    on_gpu = arguments.device == "cuda"
    print(f"{torch.cuda.get_device_name() if on_gpu else 'CPU'}, torch {torch.__version__}")
    ways = arguments.ways.split(",") + (["peer"] if arguments.peer else [])
    first = None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text(folder / "text.txt")
        for way in ways:
            content = sweep(arguments, folder, other_seeds=way == "again")
            n = len(RATES) * len(content["seeds"])
            done = run(way, content, folder, arguments)
            first = first or done.result_s
            rate = n * content["train"]["tokens"] / done.trials_s / 1e6
            cells = [way, str(n), f"{done.result_s:.1f}"]
            cells += [f"{done.planned_s:.1f}", f"{done.until_s:.1f}"]
            cells += [f"{done.trials_s:.1f}", f"{done.wall_s:.1f}"]
            cells += [f"{rate:.2f}", f"{done.result_s / first:.2f}", str(done.n_processes)]
            print("\n| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
            print("| " + " | ".join(cells) + " |\n", flush=True)
            if way != "peer":  # whose records may hold less
                table(SweepDir(done.sweep))


def sweep(arguments: argparse.Namespace, folder: Path, *, other_seeds: bool) -> dict[str, Any]:
    """Return the sweep file of one way."""
    shape = SHAPES[arguments.size]
    small = arguments.small
    batch = 4 * shape.seq_len if small else shape.batch_tokens
    seeds = range(100, 100 + arguments.seeds) if other_seeds else range(arguments.seeds)
    return {
        "name": "packed",
        "data": {
            "source": "text",
            "path": str(folder / "text.txt"),
            "vocab_size": shape.vocab_size,
            "valid_tokens": shape.seq_len,
        },
        "model": {
            "architecture": "dense",
            "d_model": shape.d_model,
            "n_layers": shape.n_layers,
            "n_heads": shape.n_heads,
            "d_ff": shape.d_ff,
        },
        "train": {
            "tokens": 2 * batch if small else arguments.tokens // batch * batch,
            "batch_tokens": batch,
            "seq_len": shape.seq_len,
        },
        "trials": [{"grid": {"train.lr": list(RATES)}}],
        "resources": {"gpus": 1 / arguments.share if arguments.device == "cuda" else 0},
        "logging": {"evaluations": 1},
        "seeds": list(seeds)[:1] if small else list(seeds),
    }


def run(way: str, content: dict[str, Any], folder: Path, arguments: argparse.Namespace) -> Done:
    """Submit a sweep in one way, and wait for its end.

    Raises:
        SystemExit: If it failed, or some trial has no result.
    """
    # `again` finds what the first way left in its runs folder.
    place = folder / (arguments.ways.split(",")[0] if way == "again" else way)
    place.mkdir(exist_ok=True)
    content = {**content, "name": f"packed_{way}"}
    file = place / f"{way}.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    code = Path(arguments.peer).resolve() if way == "peer" else Path(__file__).resolve().parents[1]
    paths = [str(code), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if way == "turns":
        # A daemon of the user's own, which is not there: memscale starts none.
        environment["CUDA_MPS_PIPE_DIRECTORY"] = str(place / "none")
    if arguments.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    else:  # the trials of this benchmark share one GPU, however many there are
        environment.setdefault("CUDA_VISIBLE_DEVICES", "0")
    command = [sys.executable, "-m", "orchestrator.cli", "submit", str(file)]
    command += ["--runs", str(place / "runs"), "--quiet"]
    started_at = time.time()
    ended = subprocess.run(
        command, cwd=code, env=environment, capture_output=True, text=True, check=False
    )
    wall_s = time.time() - started_at
    folder = place / "runs" / content["name"]
    trials = [*(folder / "trials").iterdir()]
    results = [trial / "result.json" for trial in trials]
    if ended.returncode or not all(result.exists() for result in results):
        raise SystemExit(f"{way}: {ended.stdout[-2000:]}\n{ended.stderr[-4000:]}")
    launches = (launch for trial in trials for launch in trial.rglob("launch.json"))
    launched_at = min(json.loads(launch.read_text())["started_at"] for launch in launches)
    finished_at = max(json.loads(result.read_text())["finished_at"] for result in results)
    ranks = {
        line for trial in trials for file in trial.rglob("ranks.jsonl") for line in lines(file)
    }
    planned_at = json.loads((folder / "submissions" / "0001.json").read_text())["submitted_at"]
    return Done(
        planned_at - started_at,
        launched_at - started_at,
        finished_at - launched_at,
        wall_s,
        len(ranks),
        folder,
    )


def lines(file: Path) -> list[str]:
    """Return the lines of a file."""
    return file.read_text(encoding="utf-8").splitlines()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--ways", default="mps,again,turns", help="mps, again, turns")
    parser.add_argument("--peer", help="folder with the code of another version")
    parser.add_argument("--size", choices=SHAPES, default="d32")
    parser.add_argument("--seeds", type=int, default=16, help="of each learning rate")
    parser.add_argument("--tokens", type=int, default=5_000_000, help="of a trial")
    parser.add_argument("--share", type=int, default=8, help="trials on a GPU")
    parser.add_argument("--small", action="store_true", help="four trials of two steps")
    return parser.parse_args()


if __name__ == "__main__":
    main()
