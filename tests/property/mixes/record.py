"""Records what sweeps ask of a cluster, for tests/property/test_simulation.py. Run it to record anew.

The sweeps are the repository's own and two ladders written here; times are at a stated rate per GPU, for the schedule depends
on their ratios alone. Sweeps that need data files are planned beside an empty stand-in, which changes no size.
"""

import json
import os
import tempfile
from collections import Counter
from pathlib import Path

from orchestrator.planning.pricing import make_plan
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.simulation import cluster_spec, planned_trials
from orchestrator.sweep.load import load_sweep

ROOT = Path(__file__).parents[3]
LADDER = """
name: ladder
data: {source: biographies, n_people: 200000, seed: 0}
train: {tokens: 100_000_000, batch_tokens: 65_536, seq_len: 512, lr: 3.0e-3}
model: {architecture: dense, preset: 10m}
trials:
  - set: {resources.gpus: 0.1}
    grid: {model.architecture: [dense, moe, memory_plus, peer], model.preset: [1m, 3m], train.lr: [1.0e-3, 2.0e-3, 3.0e-3, 4.0e-3]}
  - set: {resources.gpus: 0.25, train.tokens: 400_000_000}
    grid: {model.architecture: [dense, moe, memory_plus, peer], model.preset: [10m, 30m], train.lr: [1.0e-3, 2.0e-3, 3.0e-3]}
  - set: {resources.gpus: 1, train.tokens: 2_700_000_000, resources.micro_batch_tokens: 16_384}
    grid: {model.architecture: [dense, memory_plus], model.preset: [134m], train.lr: [1.0e-3, 2.0e-3]}
  - set: {resources.gpus: 8, resources.ranks: 8, train.tokens: 7_400_000_000}
    grid: {model.architecture: [dense, memory_plus], model.preset: [373m]}
  - set: {resources.gpus: 16, resources.ranks: 16, train.tokens: 14_000_000_000}
    grid: {model.architecture: [dense, memory_plus], model.preset: [720m]}
seeds: [0, 1, 2]
"""
EVEN = """
name: even
data: {source: biographies, n_people: 200000, seed: 0}
train: {tokens: 20_000_000_000, batch_tokens: 262_144, seq_len: 1024, lr: 3.0e-3}
resources: {micro_batch_tokens: 32_768}
model: {architecture: dense, preset: 134m}
trials:
  - set: {resources.gpus: 0.5, train.tokens: 8_000_000_000}
    grid: {model.architecture: [dense, pythia, memory, lookup_ffn], model.preset: [10m, 30m], train.lr: [1.0e-3, 2.0e-3, 4.0e-3]}
  - set: {resources.gpus: 2, resources.ranks: 2}
    grid: {model.architecture: [dense, memory_plus], model.preset: [30m, 134m], train.lr: [1.0e-3, 2.0e-3, 4.0e-3]}
  - set: {resources.gpus: 4, resources.ranks: 4, train.tokens: 40_000_000_000}
    grid: {model.architecture: [dense, memory_plus], model.preset: [134m], train.lr: [1.0e-3, 2.0e-3, 4.0e-3]}
  - set: {resources.gpus: 12, resources.ranks: 12, train.batch_tokens: 196_608, train.tokens: 10_000_000_000}
    grid: {model.preset: [373m], train.lr: [1.0e-3, 2.0e-3]}
seeds: [0, 1]
"""
MIXES = {
    "quickstart": ("sweeps/quickstart.yaml", "nodes=1,gpus_per_node=4,gpu_memory=24GB,gpu_flops=2e13"),
    "smoke": ("sweeps/smoke", "nodes=1,gpus_per_node=8,gpu_memory=80GB,gpu_flops=2e13"),
    "entity_facts": ("sweeps/entity_facts.yaml", "nodes=1,gpus_per_node=1,gpu_memory=80GB,gpu_flops=2e13"),
    "simplewiki": ("sweeps/simplewiki.yaml", "nodes=2,gpus_per_node=1,gpu_memory=24GB,gpu_flops=2e13"),
    "quickstart_on_cores": ("sweeps/quickstart.yaml", "nodes=2,cpus_per_node=4"),
    "ladder": (LADDER, "nodes=4,gpus_per_node=8,gpu_memory=141GB,gpu_flops=2e14"),
    "even": (EVEN, "nodes=6,gpus_per_node=8,gpu_memory=141GB,gpu_flops=2e14"),
}  # fmt: skip


def record(source: str, cluster_text: str) -> dict:
    """Return the cluster and its trials, equal ones counted: n, cpus, gpus, GPU memory in bytes, pieces, seconds, prediction group."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        file = ROOT / source if source.startswith("sweeps/") else here / "sweep.yaml"
        if not file.exists():
            file.write_text(source, encoding="utf-8")
        (here / "data").mkdir()
        (here / "data/entity_facts.tsv.gz").touch()
        (here / "data/relation_templates.json").write_text("{}")
        (here / "data/simplewiki-2018.train-00.jsonl.gz").touch()
        (here / "data/simplewiki-2018.valid.jsonl.gz").touch()
        os.chdir(here)
        cluster = cluster_spec.parse(cluster_text)
        sweep = load_sweep([file])
        plan = make_plan(sweep, SweepDir(here / "runs").snapshot(), [], gpus_there=cluster.gpus > 0)
        rows = Counter(
            (
                trial.demand.cpus,
                trial.demand.gpus,
                trial.demand.gpu_memory_bytes,
                trial.demand.gang_size,
                float(f"{trial.predicted_s:.4g}"),
                trial.prediction_group,
            )
            for trial in planned_trials.waiting_trials(plan, cluster)
        )
        os.chdir(ROOT)
    return {"cluster": cluster_text, "trials": [[n, *row] for row, n in rows.items()]}


if __name__ == "__main__":
    for name, (source, cluster_text) in MIXES.items():
        found = record(source, cluster_text)
        lines = ",\n  ".join(json.dumps(row) for row in found["trials"])
        text = f'{{"cluster": "{found["cluster"]}", "trials": [\n  {lines}\n]}}\n'
        (Path(__file__).parent / f"{name}.json").write_text(text, encoding="utf-8")
        print(name, sum(row[0] for row in found["trials"]), "trials")
