"""A trial that goes on with other ranks than it began with.

    python trial_in_stages.py OUT.json FOLDER < stages.json

A stage is `trial` (a folder in FOLDER), `ranks`, `memory_ranks`, `layout`, `table_optimizer`,
`stop_after` (null: to the end) and `damage` (a file of the newest checkpoint to cut short first, or
null); `dense` says whether dense parameters are sharded or, as they are without it, replicated,
`device` where to train if not on a CPU. OUT.json gets the metrics of every stage that came to the
end, null for others.
"""

import json
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from ranks_together import forked

from workloads.training.metrics.reporter import Interrupted
from workloads.training.rank_job import RankJob
from workloads.training.train import run

STEPS = 8
DATA = {
    "source": "biographies",
    "n_people": 20,
    "style": "compact",
    "n_wordings": 4,
    "n_probe_people": 4,
    **{f"n_{pool}": 8 for pool in ("first_names", "middle_names", "last_names", "years", "cities")},
    **{f"n_{pool}": 8 for pool in ("universities", "majors", "employers")},
}
MODEL = {
    "architecture": "memory_plus",
    "d_model": 10,
    "n_layers": 2,
    "n_heads": 1,
    "d_ff": 16,
    "n_keys": 5,
    "memory_layers": [0, 1],
    "n_memory_heads": 2,
    "knn": 2,
    "key_dim": 6,
}
TRAIN = {
    "tokens": STEPS * 96,
    "batch_tokens": 96,
    "seq_len": 16,
    "lr": 0.01,
    "value_lr_ratio": 4.0,
    "eps": 1.0e-4,
    "grad_clip": 0.1,
}


class Stops:
    """A reporter that asks to stop after a step."""

    def __init__(self, stop_after: int | None) -> None:
        self._stop_after, self._step = stop_after, 0

    def metrics(self, step: int, values: object) -> None:
        pass

    def checkpoint(self, step: int, path: Path) -> None:
        pass

    def progress(self, step: int, steps: int, phase: str, values: object) -> None:
        self._step = step

    def should_stop(self) -> bool:
        return self._stop_after is not None and self._step + 1 >= self._stop_after


def stage(folder: Path, asked: dict[str, Any], rank: int, meeting: Path) -> dict[str, float]:
    job = RankJob(
        data=DATA,
        model=MODEL,
        train={**TRAIN, "table_optimizer": asked["table_optimizer"], "precision": "fp32"},
        seed=5,
        checkpoints=folder / asked["trial"],
        cache=folder / "cache",
        log_every_steps=1,
        evaluations=2,
        checkpoint_every_s=0.0,
        device=asked.get("device", "cpu"),
        rank=rank,
        world_size=asked["ranks"],
        memory_ranks=asked["memory_ranks"],
        memory_layout=asked["layout"],
        dense_parameters=asked.get("dense", "replicated"),
        # Each stage would compile anew, on every rank, for a few steps.
        compile=False,
        rendezvous=meeting / "meet",
    )
    try:
        return run(job, Stops(asked["stop_after"]))
    except Interrupted:
        return {}


if __name__ == "__main__":
    out, name = sys.argv[1:]
    # Once, and known to all that are forked.
    import_module("workloads.checkpoint.sharded")
    folder, found = Path(name), []
    stages = json.load(sys.stdin)
    if any(asked.get("dense") == "sharded" for asked in stages):
        # By the models, which takes each rank a second unless it is there when they are forked.
        import_module("torch.distributed.fsdp")
    for asked in stages:
        if asked["damage"]:
            newest = max((folder / asked["trial"]).glob("step-*"))
            with (newest / asked["damage"]).open("r+b") as file:
                file.truncate(100)
        # A forked process cannot use a GPU.
        start = "spawn" if asked.get("device") == "cuda" else "fork"
        of_each = forked(asked["ranks"], partial(stage, folder, asked), start=start)
        found.append(of_each[0] or None)
    Path(out).write_text(json.dumps(found))
