"""One rank, run in this process with the job that counts instead of training."""

import errno
import hashlib
import json
import os
import signal
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from orchestrator.control.failure_classifier import EXIT_CODES
from orchestrator.node import reporter, worker
from orchestrator.node.reporter import RankReporter, StopFlag, stops_on_signal
from orchestrator.node.worker import load_job, main
from orchestrator.records import rank_registry
from orchestrator.records.json_files import write_json
from orchestrator.records.locks import Fenced, TrialLock
from orchestrator.records.processes import ProcessId
from orchestrator.records.rank_registry import RankRequest, registered
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import (
    RSS_PEAK,
    EvaluationSchedule,
    Logging,
    Outcome,
    TrialSpec,
)
from workloads.architectures import dense
from workloads.training.metrics.reporter import Interrupted

JOB = f"{Path(__file__).parent.parent / 'counting_job.py'}:run"


@pytest.fixture(autouse=True)
def quick_environment(monkeypatch):
    """Looking up packages and the git state takes longer than all of these tests."""
    monkeypatch.setattr(worker, "record_environment", lambda attempt: None)


@pytest.fixture
def make(tmp_path):
    """Make a trial with one attempt and return the request of its rank."""

    def make(rank=0, ranks=1, tokens=100, **data):
        spec = TrialSpec(
            sweep="s",
            data={"source": "x", **data},
            model={"architecture": "dense"},
            train={"tokens": tokens, "batch_tokens": 10, "seq_len": 10},
            seed=0,
        )
        trial = SweepDir(tmp_path / "s").trial(spec.trial_id)
        trial.create(spec)
        attempt = trial.new_attempt({"submission": 1})
        return RankRequest(
            trial_path=str(trial.path),
            attempt=attempt.number,
            rank=rank,
            ranks=ranks,
            cpus=1,
            gpus=(),
            cache="c",
            job=JOB,
        )

    return make


def steps(request):
    return [line.step for line in request.attempt_dir.lines() if line.metrics]


def events(request):
    return [line.event["event"] for line in request.attempt_dir.lines() if line.event]


def test_rank_0_leaves_journal_heartbeat_and_result(make):
    request = make()

    assert main(request) == 0

    assert steps(request) == list(range(1, 11))
    assert events(request)[0] == "start"
    assert events(request)[-1] == "done"
    result = request.trial.result()
    assert (result["steps"], result["tokens"], result["attempt"], result["device"]) == (
        10,
        100,
        1,
        "cpu",
    )
    assert result["metrics"].keys() == {"train/loss"}
    assert request.trial.heartbeat()["step"] == 10
    assert [p.name for p in request.trial.path.glob(".result*")] == []


def test_other_ranks_leave_only_their_name(make):
    request = make(rank=1, ranks=2)

    assert main(request) == 0

    assert not request.attempt_dir.journal.exists()
    assert request.trial.result() is None
    assert request.trial.heartbeat() is None
    assert registered(request.attempt_dir) == [ProcessId.own()]


def test_finished_trial_is_not_run_again(make):
    request = make()
    main(request)
    first = request.trial.result()

    assert main(request) == 0

    assert request.trial.result() == first
    assert events(request).count("start") == 1


def test_first_result_stands(make):
    request = make()
    told = RankReporter(request)
    worker.write_result(request, request.trial.spec(), told, {"a": 1.0})
    worker.write_result(request, request.trial.spec(), told, {"a": 2.0})

    assert request.trial.result()["metrics"] == {"a": 1.0}


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("user", Outcome.USER_ERROR),
        ("oom", Outcome.GPU_OOM),
        ("host_oom", Outcome.HOST_OOM),
        ("diverged", Outcome.DIVERGED),
        ("communication", Outcome.COMMUNICATION),
    ],
)
def test_failure_is_a_record_and_an_exit_code(make, kind, outcome, capsys):
    request = make(fail={"1": kind})

    assert main(request) == EXIT_CODES[outcome]

    error = request.attempt_dir.error()
    assert (error["kind"], error["step"], error["rank"]) == (outcome.value, 5, 0)
    assert "counting_job.py" in error["traceback"]
    assert "Traceback" in capsys.readouterr().err
    assert request.trial.result() is None


def test_cause_replaces_a_communication_error_and_not_the_other_way_round(make):
    request = make()
    for outcome, text in [
        (Outcome.COMMUNICATION, "first"),
        (Outcome.USER_ERROR, "cause"),
        (Outcome.COMMUNICATION, "later"),
        (Outcome.USER_ERROR, "second"),
    ]:
        worker.write_error(request, outcome, ValueError(text), step=1)

    assert request.attempt_dir.error()["message"] == "ValueError: cause"


def test_stop_checkpoints_and_the_next_attempt_goes_on_there(make):
    request = make(gate_at=4)
    stop = StopFlag()

    class StopsAtGate(RankReporter):
        def should_stop(self):
            if (request.trial.path / "at-gate").exists():
                stop.request(signal.SIGTERM, None)
            return super().should_stop()

    with pytest.raises(Interrupted, match="stopped on request after step 3"):
        worker.run(request, StopsAtGate(request, stop))

    again = replace(request, attempt=request.trial.new_attempt({}).number)
    assert main(again) == 0
    assert (steps(request), steps(again)) == ([1, 2, 3], list(range(4, 11)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_asks_for_a_stop_even_before_the_reporter_exists(make, number):
    before = signal.getsignal(number)
    stop = StopFlag()
    with stops_on_signal(stop):
        signal.raise_signal(number)

    assert RankReporter(make(), stop).should_stop()
    assert signal.getsignal(number) is before


def test_interruption_is_no_error(make, monkeypatch):
    def job(request, spec, reporter):
        raise Interrupted(3)

    request = make()
    monkeypatch.setattr(worker, "load_job", lambda name: job)

    assert main(request) == EXIT_CODES[Outcome.INTERRUPTED]
    assert request.attempt_dir.error() is None


def test_trial_that_somebody_else_trains_is_left_alone(make, monkeypatch):
    request = make()
    other = TrialLock(request.trial, attempt=1)
    other.acquire(wait_s=0)
    monkeypatch.setattr(worker, "LOCK_WAIT_S", 0.0)

    assert main(request) == EXIT_CODES[Outcome.PREEMPTED]

    assert steps(request) == []
    other.release()


def test_heartbeat_is_replaced_once_a_second_and_at_every_change_of_phase(make, monkeypatch):
    now, written = [0.0], []
    monkeypatch.setattr(
        reporter,
        "write_json",
        lambda path, record, durable: written.append((record["step"], record["phase"])),
    )
    told = RankReporter(make(), clock=lambda: now[0])
    for step in range(1, 31):
        now[0] = step * 0.1
        told.progress(step, 30, "train", {"loss": 1.0})
    told.progress(30, 30, "evaluate", {})

    assert written == [(1, "train"), (11, "train"), (21, "train"), (30, "evaluate")]


@pytest.mark.parametrize("set_s", [-86_400.0, 7200.0], ids=["back a day", "forward two hours"])
def test_heartbeats_and_step_times_do_not_follow_a_clock_that_is_set(make, set_s):
    now = [0.0]
    request = make()
    told = RankReporter(
        request,
        clock=lambda: now[0],
        wall_clock=lambda: 1e9 + now[0] + set_s * (now[0] > 1.0),
    )
    for step in range(1, 41):
        now[0] = step * 0.1
        told.progress(step, 40, "train", {"loss": 1.0})

    assert told._lap_timer.step_s == pytest.approx(0.1)
    assert request.trial.heartbeat()["step"] == 31
    assert request.trial.heartbeat()["updated_at"] == pytest.approx(1e9 + 3.1 + set_s)


def test_checkpoint_puts_the_journal_on_the_disk_first(make, monkeypatch):
    synced = []
    request = make()
    told = RankReporter(request)
    monkeypatch.setattr(os, "fsync", synced.append)
    told.metrics(3, {"train/loss": 1.0})
    assert synced == []
    told.checkpoint(3, Path("step-00000003"))

    assert len(synced) == 1
    assert [line.step for line in request.attempt_dir.lines()] == [3, 3]


def test_torn_line_of_ranks_is_a_process_that_died_writing_it(make):
    request = make()
    rank_registry.register(request)
    with (request.attempt_dir.path / "ranks.jsonl").open("a") as file:
        file.write(json.dumps({"rank": 1})[:5])

    assert registered(request.attempt_dir) == [ProcessId.own()]


@pytest.mark.parametrize("name", ["no_colon", "orchestrator.node.worker:nothing"])
def test_wrong_job_name_is_explained(name):
    with pytest.raises(ValueError, match="job"):
        load_job(name)


def test_request_travels_as_json(make):
    request = make()

    assert RankRequest.from_json(json.loads(json.dumps(request.to_json()))) == request


def test_what_a_trial_logs_reaches_the_trainer(make, monkeypatch):
    asked = []
    trainer = SimpleNamespace(
        RankJob=SimpleNamespace, run=lambda job, reporter, **others: asked.append(job) or {}
    )
    monkeypatch.setattr(
        worker.importlib, "import_module", {"workloads.training.train": trainer}.get
    )
    request = make()
    logging = Logging(every_steps=3, evaluations=2, checkpoint_every_s=1.5, usage_every_steps=7)

    worker.train(request, replace(request.trial.spec(), logging=logging), RankReporter(request))

    (job,) = asked
    assert (job.log_every_steps, job.evaluations) == (3, 2)
    assert (job.checkpoint_every_s, job.usage_every_steps) == (1.5, 7)


def test_the_trainer_takes_every_field_that_it_is_given(make, monkeypatch):
    from workloads.training import train as trainer

    asked = []
    monkeypatch.setattr(trainer, "run", lambda job, reporter, **others: asked.append(job) or {})
    request = make()

    worker.train(request, request.trial.spec(), RankReporter(request))

    assert asked[0].usage_every_steps is None


@pytest.mark.parametrize("edited", [False, True])
def test_data_that_changed_since_the_submission_are_not_trained_on(
    make, tmp_path, monkeypatch, edited
):
    from workloads.architectures import dense
    from workloads.training import train as trainer

    file = tmp_path / "corpus.txt"
    file.write_text("A line of text.\n\n" * 2000)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    spec = TrialSpec(
        sweep="s",
        data={"source": "text", "path": str(file), "vocab_size": 300, "valid_share": 0.5},
        data_sha256={"path": digest},
        model={"architecture": "dense", **asdict(dense.Config(**dense.PRESETS["d16"]))},
        train={"tokens": 64, "batch_tokens": 32, "seq_len": 32, "lr": 1.0e-3},
        seed=0,
        logging=Logging(evaluations=1),
    )
    trial = SweepDir(tmp_path / "s").trial(spec.trial_id)
    trial.create(spec)
    request = replace(
        make(),
        trial_path=str(trial.path),
        attempt=trial.new_attempt({"submission": 1}).number,
        cache=str(tmp_path / "cache"),
        job=rank_registry.TRAIN,
    )
    monkeypatch.setattr(
        trainer, "materialise_model", lambda *_, **more: pytest.fail("it went on to train")
    )
    if edited:
        file.write_text("Another line of text.\n\n" * 2000)

    code = main(request)

    message = request.attempt_dir.error()["message"]
    if not edited:
        place = f"tests/unit/orchestrator/node/{Path(__file__).name}"
        assert message.startswith(f"Failed: it went on to train (at {place}:")
        return
    assert code == EXIT_CODES[Outcome.USER_ERROR]
    assert message == (
        f"DataError: data.path: {file} changed since this trial was submitted; "
        "restore it, or submit again (which makes other trials)"
    )


def pretend_torch(monkeypatch, *, available=True):
    """Stand in for torch; return the caps that were set."""
    caps = []
    cuda = SimpleNamespace(
        is_available=lambda: available,
        set_per_process_memory_fraction=caps.append,
        max_memory_reserved=lambda: 12_000,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    return caps


def test_rank_on_a_share_of_a_gpu_is_capped_there_and_no_other_is(make, monkeypatch):
    caps = pretend_torch(monkeypatch)

    worker.cap_gpu_memory(make())
    worker.cap_gpu_memory(replace(make(), gpus=("0",), gpu_memory_share=0.25))

    assert caps == [0.25]


def test_peak_of_gpu_memory_is_measured_where_there_is_a_gpu(make, monkeypatch):
    on_gpu = replace(make(), gpus=("0",))
    pretend_torch(monkeypatch)

    assert worker.gpu_memory_peak(on_gpu) == {"system/gpu_peak_bytes": 12_000.0}
    assert worker.gpu_memory_peak(make()) == {}


def test_peak_of_host_memory_remembers_what_was_freed():
    before = psutil.Process().memory_info().rss
    np.ones(2**24)  # 128 MiB, freed at once

    assert worker.host_memory_peak()[RSS_PEAK] > before + 2**26


def test_gpus_that_are_only_pretended_are_left_alone(make, monkeypatch):
    on_gpu = replace(make(), gpus=("0",), gpu_memory_share=0.5)
    caps = pretend_torch(monkeypatch, available=False)

    worker.cap_gpu_memory(on_gpu)

    assert caps == []
    assert worker.gpu_memory_peak(on_gpu) == {}


def test_a_disk_that_takes_no_record_either_still_ends_as_full(make, monkeypatch):
    request = make()

    def full(*arguments, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(worker, "write_json", full)
    monkeypatch.setattr("orchestrator.records.journal.Journal.metrics", full)

    assert main(request) == EXIT_CODES[Outcome.DISK_FULL]
    assert request.attempt_dir.error() is None


def test_journal_is_on_the_disk_before_a_checkpoint_has_its_name(make, monkeypatch):
    told = RankReporter(make())
    told.metrics(1, {"train/loss": 1.0})
    told.progress(1, 10, "train", {})

    def lost(file):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.records.journal.os.fsync", lost)
        with pytest.raises(OSError, match="Input/output error"):
            told.progress(1, 10, "checkpoint", {})
    told.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_heartbeat_that_the_disk_does_not_take_ends_nothing(make, monkeypatch, code):
    def refused(*arguments, **more):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(reporter, "write_json", refused)

    assert main(make()) == 0


def test_storage_that_fails_is_named_in_the_record(make, monkeypatch):
    request = make()

    def stale(*arguments, **more):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr("orchestrator.records.journal.os.write", stale)

    assert main(request) == EXIT_CODES[Outcome.STORAGE]
    error = request.attempt_dir.error()
    assert error["kind"] == "storage"
    assert error["message"].startswith(
        f"the storage of {request.trial.path} fails (Stale file handle); see to its server"
    )


def test_step_time_is_the_median_over_laps_of_training_alone():
    now = [0.0]
    pace = reporter.LapTimer(lambda: now[0])
    for step, (at, phase) in enumerate(
        [
            (0.0, "data"),
            (9.0, "train"),
            (9.1, "train"),
            (10.0, "train"),
            (10.0, "evaluate"),
            (99.0, "train"),
            (101.0, "train"),
            (104.0, "train"),
        ]
    ):
        now[0] = at
        pace.record(step, phase)

    # Laps: 2 steps in 1 s, 1 in 2 s, 1 in 3 s.
    assert pace.step_s == 2.0


def close_attempt(request):
    write_json(request.attempt_dir.path / "end.json", {"outcome": "node_lost"})


def test_a_rank_whose_attempt_was_closed_ends_without_writing(make, monkeypatch):
    """As after SIGCONT: more than a second has passed since it last looked."""
    request = make()

    def job(request, spec, reporter):
        reporter.progress(1, 10, "train", {})
        reporter.metrics(1, {"train/loss": 2.0})
        close_attempt(request)
        seen["files"] = contents(request.trial.path)
        monkeypatch.setattr(reporter, "_clock", lambda: time.monotonic() + 2.0)
        for write in (
            lambda: reporter.metrics(2, {"train/loss": 1.0}),
            lambda: reporter.checkpoint(2, request.trial.checkpoints / "step-00000002"),
        ):
            with pytest.raises(Fenced):
                write()
        reporter.progress(2, 10, "train", {})

    seen = {}
    monkeypatch.setattr(worker, "load_job", lambda name: job)

    assert main(request) == EXIT_CODES[Outcome.NODE_LOST]

    assert contents(request.trial.path) == seen["files"]


@pytest.mark.parametrize("error", [None, ConnectionError("the other ranks are gone")])
def test_what_comes_after_the_end_of_an_attempt_is_not_written(make, monkeypatch, error):
    request = make()

    def job(request, spec, reporter):
        close_attempt(request)
        if error is not None:
            raise error
        return {"train/loss": 1.0}

    monkeypatch.setattr(worker, "load_job", lambda name: job)

    assert main(request) != 0

    assert request.attempt_dir.error() is None
    assert request.trial.result() is None


def test_a_rank_that_was_not_started_in_time_does_not_train(make, monkeypatch):
    request = make()
    close_attempt(request)
    monkeypatch.setattr(worker, "load_job", lambda name: pytest.fail("it trains"))

    assert main(request) == EXIT_CODES[Outcome.NODE_LOST]


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("skipped", [None, "10 rows of each task would take too long"])
def test_benchmarks_that_planning_skipped_are_not_asked(make, tmp_path, skipped):
    request = make()
    path = tmp_path / "qa.jsonl"
    path.write_text(
        '{"question": "Who?", "answer": "Ann"}\n{"question": "Where?", "answer": "Here"}\n'
    )
    asked = EvaluationSchedule(questions=str(path), rows=10, most_share=0.05, skipped=skipped)
    spec = request.trial.spec()
    model = {"architecture": "dense", **dense.PRESETS["d8"]}
    spec = replace(spec, evaluation=asked, model=model, train={**spec.train, "seq_len": 64})

    assert (worker.benchmarks(request, spec) is None) == (skipped is not None)
