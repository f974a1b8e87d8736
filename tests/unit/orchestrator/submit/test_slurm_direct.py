"""Jobs of single trials: what is refused, and what a job says that does not hold its trial."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.launchers.slurm import commands, job_records, submitit_adapter
from orchestrator.launchers.slurm.commands import (
    NodeKind,
    Partition,
    SlurmError,
    parse_partitions,
)
from orchestrator.launchers.slurm.options import SlurmOptions
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Resources, TrialSpec
from orchestrator.submit import slurm_direct
from orchestrator.submit.slurm_submission import SlurmSubmission

JOB = f"{Path(__file__).parent.parent / 'counting_job.py'}:run"
RECORD = {"number": 1, "trial_ids": []}
UNLIKE = Partition(
    name="gpu",
    default=True,
    kinds=(
        NodeKind(cpus=96, gpus_by_type={"": 4}, nodes=40),
        NodeKind(cpus=128, gpus_by_type={"": 8}, nodes=2),
        NodeKind(cpus=16, gpus_by_type={}, nodes=60),
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


def asked(monkeypatch, tmp_path, partition, *specs, **request):
    """Return what `send` asks of sbatch for each job: options, cores and GPUs per node."""
    jobs = []

    def submit(calls, *, request, cpus, gpus, **rest):
        jobs.append((dict(request.options), cpus, gpus))
        return [f"{len(jobs)}_{i}" for i in range(len(calls))]

    monkeypatch.setattr(submitit_adapter, "submit", submit)
    monkeypatch.setattr(commands, "require", lambda: None)
    monkeypatch.setattr(commands, "queued", lambda job_ids: {})
    monkeypatch.setattr(commands, "max_array_size", lambda: 9)
    monkeypatch.setattr(commands, "partition", lambda name: partition)
    monkeypatch.setattr(SlurmSubmission, "recorded", lambda self, sweep: nullcontext(RECORD))
    trials = [
        SimpleNamespace(spec=spec, status="new", runtime=SimpleNamespace(seconds=1.0))
        for spec in specs
    ]
    SlurmSubmission(
        plan=SimpleNamespace(readable=trials, trials=trials, sweep=SimpleNamespace(name="s")),
        runs=tmp_path,
        request=SlurmOptions(**{"backend": "slurm", **request}),
    ).send()
    return jobs


def check(*specs, **request):
    """Return the GPUs that pilots would ask of each node, once nothing is refused."""
    request = SlurmOptions(**{"backend": "slurm", **request})
    submission = SlurmSubmission(plan=None, runs=Path("/runs"), request=request)
    submission._check(UNLIKE, specs)
    return submission._gpus_per_node(UNLIKE, specs)


A100 = {"gres": "gpu:a100"}


@pytest.mark.parametrize(
    ("nodes", "gpus"),
    [
        ("gpu*|10|64|gpu:v100:8\ngpu*|4|64|gpu:a100:4\n", 4),
        ("gpu*|10|64|gpu:v100:4\ngpu*|4|64|gpu:a100:8\n", 8),
        ("gpu*|4|64|gpu:a100:4,gpu:t4:4\n", 4),
        ("gpu*|4|64|gpu:4\ngpu*|1|64|gpu:a100:2\n", 2),
    ],
)
def test_gpus_of_other_types_do_not_count(monkeypatch, tmp_path, nodes, gpus):
    partition = parse_partitions(nodes)["gpu"]
    ask = partial(asked, monkeypatch, tmp_path, partition, options=A100)
    assert ask(spec_of(gpus=1.0)) == [(A100, None, gpus)]
    assert ask(spec_of(gpus=0)) == [(A100, None, 0)]
    assert ask(spec_of(gpus=float(gpus)), backend="slurm-direct") == [(A100, 1, gpus)]
    for backend in ("slurm", "slurm-direct"):
        with pytest.raises(SlurmError, match=rf"needs {gpus + 1} GPUs .*and {gpus} a100 GPUs"):
            ask(spec_of(gpus=gpus + 1.0), backend=backend)


@pytest.mark.parametrize("backend", ["slurm", "slurm-direct"])
def test_a_type_that_is_not_there(monkeypatch, tmp_path, backend):
    partition = parse_partitions("gpu*|4|64|gpu:a100:4\n")["gpu"]
    ask = partial(asked, monkeypatch, tmp_path, partition, backend=backend)
    for gpus in ("auto", 1.0):
        with pytest.raises(SlurmError, match="gres=gpu:t4: partition gpu has .* and 4 a100 GPUs; "):
            ask(spec_of(gpus=gpus), options={"gres": "gpu:t4"})
    assert ask(spec_of(), options={"gres": "gpu:t4"})[0][2] == 0


@pytest.mark.parametrize(
    ("resources", "request_", "mincpus"),
    [
        ({"cpus": 32}, {}, "64"),
        ({"cpus": 16}, {}, None),
        ({"cpus": 65}, {}, "128"),
        ({"cpus": 32, "gpus": 0}, {}, "32"),
        ({"cpus": 8, "ranks": 4, "gpus": 4.0}, {"max_nodes": 2}, None),
        ({"cpus": 8, "ranks": 4, "gpus": 4.0}, {"max_nodes": 1}, "64"),
        ({"cpus": 32}, {"cpus": 32}, None),
        ({"cpus": 32}, {"min_nodes": 16, "max_nodes": 16}, None),
        ({"cpus": 32}, {"options": {"qos": "long"}}, "64"),
        ({"cpus": 32}, {"options": {"mincpus": "40"}}, "40"),
        ({"cpus": 32}, {"options": {"nodelist": "n7"}}, None),
        ({"cpus": 32}, {"options": {"constraint": "big"}}, None),
    ],
)
def test_pilots_ask_for_the_nodes_that_hold_the_trials(
    monkeypatch, tmp_path, resources, request_, mincpus
):
    kinds = "gpu*|10|16|gpu:4\ngpu*|2|128|gpu:4\ngpu*|4|64|gpu:4\ngpu*|9|32|(null)\n"
    partition = parse_partitions(kinds)["gpu"]
    spec = spec_of(**{"gpus": 1.0, **resources})
    ((options, cpus, _),) = asked(monkeypatch, tmp_path, partition, spec, **request_)
    assert (options.get("mincpus"), cpus) == (mincpus, request_.get("cpus"))
    assert options.items() >= request_.get("options", {}).items()


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
