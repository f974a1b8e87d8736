"""Job of the chaos test: a logistic map, in which a lost or repeated step changes all later ones.

Keeps the contract of `workloads.training.train.run`: goes on from the newest checkpoint, which it
writes aside and renames, and checkpoints and raises Interrupted when asked to stop.
"""

import json
import os
import time

from workloads.training.metrics.reporter import Interrupted


def run(request, spec, reporter):
    steps = spec.train["tokens"] // spec.train["batch_tokens"]
    folder = request.trial.checkpoints
    # Nobody gets to the end before everything has struck.
    hold = request.trial.path.parent.parent / "hold"
    for left in folder.glob(".tmp-*") if request.rank == 0 else ():
        left.unlink()
    saved = sorted(folder.glob("step-*")) if folder.is_dir() else []
    state = json.loads(saved[-1].read_text()) if saved else {"step": 0, "x": 1 / (spec.seed + 3)}
    while state["step"] < steps:
        if reporter.should_stop():
            _save(request, folder, state, reporter)
            raise Interrupted(state["step"])
        time.sleep(spec.data["pause_s"])
        if state["step"] >= 0.9 * steps and hold.exists():
            continue
        state = {"step": state["step"] + 1, "x": 3.9 * state["x"] * (1 - state["x"])}
        metrics = {"train/loss": state["x"], "train/lr": 1.0 / state["step"]}
        reporter.progress(state["step"], steps, "train", {"loss": state["x"], "tokens_per_s": 1.0})
        reporter.metrics(state["step"], metrics)
        if state["step"] % spec.data["checkpoint_every"] == 0:
            _save(request, folder, state, reporter)
    return metrics


def _save(request, folder, state, reporter):
    if request.rank != 0:
        return
    folder.mkdir(exist_ok=True)
    path = folder / f"step-{state['step']:08d}"
    aside = folder / f".tmp-{request.attempt}"
    with aside.open("w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    reporter.checkpoint(state["step"], path)
