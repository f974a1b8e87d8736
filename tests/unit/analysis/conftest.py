"""Synthetic sweeps in the real layouts: trial directories and MLflow runs, written as the trainer and the exporter do."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from orchestrator.records.json_files import write_json
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import TrialSpec

SIZES = (32, 48, 64, 96, 128, 192)


@dataclass(frozen=True)
class Trial:
    spec: TrialSpec
    metrics: dict[str, float]


def recall(architecture, total_params):
    """The truth behind the synthetic runs: the same half-way size, a steeper rise with memory."""
    half = 4e5
    return 0.95 / (1 + (half / total_params) ** (1.4 if architecture == "dense" else 1.9))


def make_trial(architecture, d_model, seed, *, sweep="synthetic", noise=0.01, **metrics):
    d_ff = 4 * d_model
    memory = 0 if architecture == "dense" else 40 * d_model**2
    total = 30 * d_model**2 + 200 * d_model + memory
    flops = 6.0 * (30 * d_model**2 + 200 * d_model) * 1_000_000
    generator = np.random.default_rng([seed, d_model, len(architecture)])
    shift = noise * generator.standard_normal(3)
    share = float(np.clip(recall(architecture, total) + shift[0], 0, 1))
    spec = TrialSpec(
        sweep=sweep,
        data={"source": "biographies", "n_people": 3000, "seed": 0, "path": None},
        model={
            "architecture": architecture,
            "d_model": d_model,
            "d_ff": d_ff,
            "layers": [0, 2],
            "qk_norm": True,
            "theta": 10000.0,
        },
        train={"tokens": 1_000_000, "lr": 0.003, "schedule": "cosine", "grad_clip": 1.0},
        seed=seed,
        preset=f"{d_model}w",
        accounting={
            "params_embedding": 200 * d_model,
            "params_attention": 10 * d_model**2,
            "params_feed_forward": 20 * d_model**2,
            "params_memory_values": memory,
            "total_params": total,
            "non_embedding_params": total - 200 * d_model,
            "active_params": 30 * d_model**2,
            "training_flops": flops,
            "training_tokens": 1_000_000,
            "steps": 100,
        },
    )
    values = {
        "train/loss": 3.0 - share + 0.1 * shift[1],
        "valid/loss": 3.1 - share + 0.1 * shift[1],
        "recall/train_wording/exact_match": share,
        "recall/train_wording/answer_nll": 1 + 6 * (total / 1e5) ** -0.5 + shift[2],
        "recall/question/exact_match": share / 2,
        "knowledge/stored_bits": 40.0 * share * 3000,
        "knowledge/bits_per_param": 40.0 * share * 3000 / total,
        "time/train_s": 12.5,
    }
    return Trial(spec, {**values, **metrics})


def make_sweep(*, seeds=(0, 1, 2), sizes=SIZES, architectures=("dense", "memory_plus"), **options):
    return [make_trial(a, d, s, **options) for a in architectures for d in sizes for s in seeds]


def start(runs: Path, trial: Trial) -> tuple[TrialDir, Path]:
    folder = SweepDir(runs / trial.spec.sweep).trial(trial.spec.trial_id)
    folder.create(trial.spec)
    attempt = folder.new_attempt({"started_at": 1.0, "why": "first attempt"})
    write_json(
        attempt.path / "environment.json",
        {"git": {"commit": "abc123"}, "packages": {"torch": "2.13.0"}, "cpus": 2},
    )
    return folder, attempt


def journal(attempt, records):
    with attempt.journal.open("a", encoding="utf-8") as file:
        for step, metrics in records:
            file.write(
                json.dumps({"t": 1_700_000_000_000 + step, "step": step, "metrics": metrics}) + "\n"
            )


def write_done(runs: Path, trial: Trial) -> TrialDir:
    folder, attempt = start(runs, trial)
    journal(attempt, [(50, {"train/loss": 9.0}), (100, trial.metrics)])
    write_json(attempt.path / "end.json", {"outcome": "done", "reason": "finished", "final": True})
    write_json(
        folder.path / "result.json",
        {
            "trial_id": trial.spec.trial_id,
            "attempt": 1,
            "finished_at": 2.0,
            "steps": 100,
            "metrics": trial.metrics,
        },
    )
    return folder


def write_runs(runs: Path, trials) -> Path:
    for trial in trials:
        write_done(runs, trial)
    return runs


def usage_reports(kind="memory", *, layers=("layer_01", "layer_03"), steps=(20, 40, 60, 80, 100)):
    """Return journal records as a sparse model reports its use: each layer, and the mean over layers."""
    records = []
    for step in steps:
        done = step / 100
        stats = {
            "memory": {
                "usage": 0.3 * done,
                "usage_ever": 0.8 * done,
                "kl": 2.0 - done,
                "effective_rows": 4 + 20 * done,
                "top1_weight": 0.5,
                "max_over_mean": 100 * done,
                "distinct_rows": 500.0,
                "output_ratio": 0.2 * done,
            },
            "moe": {
                "usage": 1.0,
                "kl": 0.5 - 0.4 * done,
                "max_over_mean": 3 - done,
                "dropped_share": 0.0,
                "router_entropy": 2.0,
            },
        }[kind]
        shift = {layer: 1 + 0.1 * i for i, layer in enumerate(layers)}
        values = {
            f"{kind}/{layer}/{stat}": value * shift[layer]
            for layer in layers
            for stat, value in stats.items()
        }
        mean = sum(shift.values()) / len(shift)
        values |= {f"{kind}/{stat}": value * mean for stat, value in stats.items()}
        records.append((step, values))
    return records


def write_reporting(runs: Path, trials, *, moe=(), layers=("layer_01", "layer_03")) -> Path:
    """Write trials of which every one but dense reports its use; those in `moe` that of experts."""
    for trial in trials:
        folder = write_done(runs, trial)
        architecture = trial.spec.architecture
        if architecture != "dense":
            kind = "moe" if architecture in moe else "memory"
            journal(folder.attempts()[0], usage_reports(kind, layers=layers))
    return runs


def write_tracker(uri: str, trials, *, artifacts: Path, states=None):
    """Log trials as docs/mlflow.md, "MLflow layout" says; `states` overrides the state of the first ones."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag

    client = MlflowClient(tracking_uri=uri)
    experiments = {}
    for number, trial in enumerate(trials):
        spec = trial.spec
        if spec.sweep not in experiments:
            experiments[spec.sweep] = client.create_experiment(
                spec.sweep, artifact_location=str(artifacts / spec.sweep)
            )
            parent = client.create_run(experiments[spec.sweep])
            client.set_tag(parent.info.run_id, "memscale.kind", "sweep")
        run_id = client.create_run(experiments[spec.sweep]).info.run_id
        state = states[number] if states and number < len(states) else "done"
        tags = {
            "memscale.kind": "trial",
            "memscale.sweep": spec.sweep,
            "memscale.trial_id": spec.trial_id,
            "memscale.architecture": spec.architecture,
            "memscale.preset": spec.preset,
            "memscale.attempt": "1",
            "memscale.reason": "new: nothing like it was done before",
            "memscale.not_causal": spec.not_causal or "",
            "memscale.state": state,
        }
        params = {"architecture": spec.architecture, "preset": spec.preset, "seed": spec.seed}
        for section in ("model", "train", "data"):
            params |= {f"{section}.{key}": value for key, value in getattr(spec, section).items()}
        metrics = [Metric(key, float(value), 1, 0) for key, value in spec.accounting.items()]
        metrics += [Metric("train/loss", 9.0, 2, 50), Metric("system/cpu_percent", 55.0, 2, 3)]
        if state == "done":
            metrics += [Metric(key, float(value), 3, 100) for key, value in trial.metrics.items()]
        client.log_batch(
            run_id,
            metrics=metrics,
            params=[Param(key, str(value)) for key, value in params.items()],
            tags=[RunTag(key, value) for key, value in tags.items()],
        )
        client.set_terminated(run_id, "FINISHED" if state == "done" else "FAILED")
    return uri


@pytest.fixture
def no_pictures(monkeypatch):
    """Let figures be made and not drawn, where a report's files are not the point: they take most of its time."""
    from analysis.plotting import canvas

    monkeypatch.setattr(canvas, "settle_layout", lambda figure: None)
    monkeypatch.setattr(canvas, "drawn_once", lambda figure: figure)
    monkeypatch.setattr(canvas, "image", lambda figure, kind: kind.encode())


@pytest.fixture(scope="session")
def synthetic():
    """The writers above: tests have no package to import them from."""
    return SimpleNamespace(
        make_trial=make_trial,
        make_sweep=make_sweep,
        start=start,
        journal=journal,
        write_done=write_done,
        write_runs=write_runs,
        write_reporting=write_reporting,
        usage_reports=usage_reports,
        write_tracker=write_tracker,
    )


@pytest.fixture(scope="session")
def sweep():
    return make_sweep()


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory, sweep):
    return write_runs(tmp_path_factory.mktemp("state") / "runs", sweep)


@pytest.fixture(scope="session")
def runs(runs_folder):
    from analysis.loading.load import load

    return load(runs_folder, sweep="synthetic")


@pytest.fixture(scope="session")
def fits(runs):
    from analysis.scaling.sweep_summary import fit_sweep

    return fit_sweep(runs, n_draws=60)


@pytest.fixture(scope="session")
def tracker(tmp_path_factory):
    """One database for all tests, and the trials in it that count: MLflow takes seconds to make one."""
    folder = tmp_path_factory.mktemp("tracker")
    trials = make_sweep(sizes=(32, 64), seeds=(0, 1), sweep="tracked")
    bad = make_trial("dense", 96, 0, sweep="tracked", **{"valid/loss": float("nan")})
    late = make_trial("dense", 96, 1, sweep="tracked")
    # The last two states differ: `states` names the state of the first trials.
    order = [late, *trials, bad]
    uri = f"sqlite:///{folder}/mlflow.db"
    write_tracker(uri, order, artifacts=folder, states=["failed"])
    return uri, trials


@pytest.fixture(scope="session")
def published_runs():
    """Read a table of published runs by its file name, from the folder MEMSCALE_SCALING_DATA."""
    folder = os.environ.get("MEMSCALE_SCALING_DATA")

    def read(name):
        if folder is None or not (Path(folder) / name).is_file():
            pytest.skip(f"published data: set MEMSCALE_SCALING_DATA to a folder that holds {name}")
        return pd.read_csv(Path(folder) / name)

    return read


LAWS = {
    "dense": {"A": 482.01, "B": 2085.43, "E": 1.8172, "alpha": 0.3478, "beta": 0.3658},
    "memory": {"A": 330.0, "B": 2085.43, "E": 1.8172, "alpha": 0.3478, "beta": 0.3658},
}
"""Two architectures that differ in what a parameter is worth; the first as Besiroglu et al. 2024."""


def make_two_architectures(*, noise=0.0, seeds=1, seed=0, laws=LAWS):
    """Return columns of runs: six sizes, three lengths; FLOPs are 6 N D, seconds 40 % more for memory, stored is 9 N."""
    from analysis.laws.chinchilla import CHINCHILLA

    generator = np.random.default_rng(seed)
    params = np.repeat(np.geomspace(1e6, 1e8, 6), 3)
    tokens = params * np.tile([5.0, 20.0, 80.0], 6)
    frames = []
    for name, law in laws.items():
        clean = CHINCHILLA.evaluate(
            {"params": params, "tokens": tokens}, np.asarray(list(law.values()))
        )
        memory = 0 * params if name == "dense" else 8 * params
        for number in range(seeds):
            flops = 6 * params * tokens
            frames.append(
                pd.DataFrame(
                    {
                        "architecture": name,
                        "params": params,
                        "tokens": tokens,
                        "seed": number,
                        "memory_params": memory,
                        "total_params": params + memory,
                        "active_params": params,
                        "training_flops": flops,
                        "train_seconds": flops / 1e14 * (1.0 if name == "dense" else 1.4),
                        "bytes_read_per_token": 2 * params + 1e6,
                        "loss": clean * np.exp(noise * generator.standard_normal(len(params))),
                    }
                )
            )
    return pd.concat(frames, ignore_index=True)


@pytest.fixture(scope="session")
def two_architectures():
    return make_two_architectures


@pytest.fixture(scope="session")
def exact_families():
    """Two architectures fitted to runs without noise: their coefficients are those of LAWS, and there are no bands."""
    from analysis.fitting.objective import SQUARES
    from analysis.scaling.architecture_laws import fit_families

    return fit_families(make_two_architectures(), objective=SQUARES, n_draws=0, hold_out=False)


@pytest.fixture(scope="session")
def noisy_families():
    from analysis.fitting.objective import SQUARES
    from analysis.scaling.architecture_laws import fit_families

    runs = make_two_architectures(noise=0.004, seeds=2, seed=1)
    return fit_families(runs, objective=SQUARES, n_draws=100, hold_out=False)
