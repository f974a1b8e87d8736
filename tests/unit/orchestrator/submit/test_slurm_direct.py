"""Jobs of single trials: what is refused, and what a job says that does not hold its trial."""

from pathlib import Path

import pytest

from orchestrator.launchers.slurm import job_records
from orchestrator.launchers.slurm.commands import NodeKind, Partition, SlurmError
from orchestrator.launchers.slurm.options import SlurmOptions
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Resources, TrialSpec
from orchestrator.submit import slurm_direct
from orchestrator.submit.slurm_submission import SlurmSubmission

JOB = f"{Path(__file__).parent.parent / 'counting_job.py'}:run"
UNLIKE = Partition(
    name="gpu",
    default=True,
    kinds=(
        NodeKind(cpus=96, gpus=4, nodes=40),
        NodeKind(cpus=128, gpus=8, nodes=2),
        NodeKind(cpus=16, gpus=0, nodes=60),
    ),
)


def spec_of(seed=0, **resources):
    return TrialSpec(
        sweep="s",
        data={"source": "x"},
        model={"architecture": "dense"},
        train={"tokens": 100, "batch_tokens": 10, "seq_len": 10},
        seed=seed,
        resources=Resources(**{"gpus": 0, **resources}),
    )


def check(*specs, **request):
    """Return the GPUs that pilots would ask of each node, once nothing is refused."""
    request = SlurmOptions(**{"backend": "slurm", **request})
    submission = SlurmSubmission(plan=None, runs=Path("/runs"), request=request)
    submission._check(UNLIKE, specs)
    return submission._gpus_per_node(UNLIKE, specs)


def test_what_most_nodes_hold_is_asked_for():
    assert check(spec_of(gpus=1.0, cpus=8), max_nodes=8) == 4
    assert check(spec_of(gpus="auto"), max_nodes=8) == 4
    assert check(spec_of(gpus=8.0), spec_of(gpus=1.0)) == 8
    assert check(spec_of(gpus=1.0), cpus=100) == 8
    assert check(spec_of(gpus=1.0), cpus=48, gpus=4, min_nodes=42, max_nodes=42) == 4
    assert check(spec_of(gpus=0), min_nodes=102, max_nodes=102) == 0


@pytest.mark.parametrize(
    ("resources", "request_", "message"),
    [
        ({}, {"cpus": 129}, "--cpus 129: partition gpu has 40 nodes of 96 cores and 4 GPUs, 2 "),
        ({}, {"cpus": 100, "gpus": 9}, "--cpus 100 --gpus 9: partition gpu has"),
        ({}, {"cpus": 48, "min_nodes": 43, "max_nodes": 43}, "--nodes 43 --cpus 48: partition"),
        ({"cpus": 129}, {}, "needs 129 cores in 1 ranks; nodes have 128 cores; choose another"),
        ({"ranks": 16, "gpus": 16.0}, {"gpus": 8, "max_nodes": 1}, "it takes 2 of them: --nodes 2"),
        ({"ranks": 48, "gpus": 48.0}, {"gpus": 8, "max_nodes": 9}, "choose another --partition"),
    ],
)
def test_what_no_node_of_the_partition_holds(resources, request_, message):
    with pytest.raises(SlurmError, match=message):
        check(spec_of(**resources), **request_)


@pytest.mark.parametrize(
    "resources",
    [{"cpus": 400}, {"gpus": 9.0}, {"gpus": 2.0, "cpus": 129}, {"gpus": 8.0, "cpus": 129}],
)
def test_a_job_that_no_node_holds(resources):
    with pytest.raises(SlurmError, match=r"on one node; partition gpu has 40 nodes of 96 cores"):
        check(spec_of(**resources), backend="slurm-direct")
    check(spec_of(cpus=128, gpus=8.0), backend="slurm-direct")


def test_jobs_that_were_taken_before_one_is_refused_are_told(tmp_path, monkeypatch):
    arrays = []

    def submit(calls, **rest):
        if arrays:
            raise SlurmError("sbatch refused: QOSMaxSubmitJobPerUserLimit")
        arrays.append([f"7_{i}" for i in range(len(calls))])
        return arrays[0]

    monkeypatch.setattr(slurm_direct.submitit_adapter, "submit", submit)
    sweep = SweepDir(tmp_path / "s")

    with pytest.raises(slurm_direct.PartlyRefusedError) as refused:
        slurm_direct.submit(
            sweep,
            [spec_of(seed) for seed in range(3)],
            submission=1,
            request=SlurmOptions(backend="slurm-direct"),
            partition=UNLIKE,
            array_size=2,
            cache=tmp_path,
            predicted_s={},
        )

    assert refused.value.job_ids == ["7_0", "7_1"]
    assert "QOSMaxSubmitJobPerUserLimit; 2 of 3 jobs are queued and go on" in str(refused.value)
    assert [path.name for path in (job_records.folder(sweep) / "jobs").iterdir()] == ["7.json"]


def test_a_job_that_does_not_hold_its_trial_fails_and_says_so(tmp_path, monkeypatch):
    sweep, spec = SweepDir(tmp_path / "s"), spec_of(cpus=2)
    sweep.path.mkdir()
    sweep.trial(spec.trial_id).create(spec)
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    job = slurm_direct.DirectTrial(
        sweep=str(sweep.path),
        trial_id=spec.trial_id,
        submission=1,
        cache=str(tmp_path / "cache"),
        predicted_s=1.0,
        job=JOB,
    )

    with pytest.raises(SlurmError, match=f"trial {spec.trial_id} cannot run in its job: .*2 cores"):
        job()
