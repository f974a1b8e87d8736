"""What the simulation takes a trial for is what the controller would start."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.app import make_plan
from orchestrator.control.resource_estimator import ResourceEstimator
from orchestrator.control.trial_state import ManagedTrial
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import Resources, TrialSpec
from orchestrator.scheduling.demand import Demand
from orchestrator.simulation import cluster_spec
from orchestrator.simulation.planned_trials import _demand, waiting_trials
from orchestrator.simulation.simulate import simulate

CLUSTERS = (
    "gpus=1",
    "gpus=3",
    "nodes=4,gpus_per_node=1",
    "nodes=1,gpus_per_node=4",
    "nodes=2,gpus_per_node=4+nodes=3,gpus_per_node=2",
    "nodes=2,cpus_per_node=16",
    "nodes=1,cpus_per_node=64+nodes=1,gpus_per_node=2",
)


def trial(resources: Resources) -> TrialSpec:
    return TrialSpec(
        sweep="s",
        data={"source": "biographies"},
        model={"architecture": "dense"},
        train={"tokens": 64, "batch_tokens": 64, "seq_len": 8},
        seed=0,
        resources=resources,
        accounting={"peak_memory_bytes": 1e9, "steps": 1.0},
    )


@given(
    st.sampled_from(CLUSTERS),
    st.integers(1, 9),
    st.sampled_from(["auto", 0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0]),
)
def test_controller_and_simulator_take_a_trial_for_the_same(
    cluster: str, ranks: int, gpus: float | str
) -> None:
    nodes = cluster_spec.parse(cluster).nodes
    spec = trial(Resources(ranks=ranks, gpus=gpus, cpus=2))
    managed = ManagedTrial(folder=TrialDir(Path("unused")), spec=spec)

    def without_memory(demand: Demand) -> tuple[int, float, int]:
        return demand.cpus, demand.gpus, demand.gang_size

    simulated = without_memory(_demand(spec, nodes))
    assert simulated == without_memory(ResourceEstimator({}).demand(managed, nodes))


SWEEP = """
name: unlike
data: {source: biographies, n_people: 300}
train: {tokens: 1_048_576, batch_tokens: 262_144, seq_len: 256, lr: 1.0e-3}
model: {architecture: dense, preset: 10m}
seeds: [0, 1, 2, 3, 4, 5, 6, 7]
"""


def used(file: Path, cluster_text: str) -> set[str]:
    """Return the nodes on which a sweep trains; all its trials must fit."""
    cluster = cluster_spec.parse(cluster_text)
    plan = make_plan([file], file.parent / "runs", gpus_there=True, nodes=cluster.nodes)
    found = simulate(cluster.nodes, waiting_trials(plan, cluster))
    assert not found.impossible
    return {found.nodes[part.node].node_id for run in found.runs for part in run.allocation}


def test_smaller_gpus_take_whole_gpu_trials_in_more_passes(tmp_path: Path) -> None:
    file = tmp_path / "unlike.yaml"
    file.write_text(SWEEP)

    assert used(file, "gpus=4,gpu_memory=80GB+gpus=4,gpu_memory=2GB") == {"node0", "node1"}
    # Not even one sequence fits there: the others are still sized for GPUs that hold it.
    assert used(file, "gpus=4,gpu_memory=80GB+gpus=4,gpu_memory=600MB") == {"node0"}


def test_ranks_of_auto_that_share_a_gpu_share_its_memory(tmp_path: Path) -> None:
    file = tmp_path / "shared.yaml"
    file.write_text(f"{SWEEP}resources: {{ranks: 4}}\n")

    assert used(file, "gpus=1,gpu_memory=8GB") == {"node0"}


def test_ranks_that_share_gpus_are_spread_over_nodes_that_are_too_small(tmp_path: Path) -> None:
    file = tmp_path / "gang.yaml"
    file.write_text(f"{SWEEP}resources: {{ranks: 4, gpus: 2}}\n")

    assert used(file, "nodes=2,gpus_per_node=1") == {"node0", "node1"}
