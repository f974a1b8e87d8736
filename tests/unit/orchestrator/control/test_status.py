"""What of a trial's records reaches a terminal."""

import json
import os
import time

import pytest

from orchestrator.control import retry_requests
from orchestrator.control.status import cache_line, status_from_disk
from orchestrator.control.terminal_text import printable
from orchestrator.records import status_cache
from orchestrator.records.json_files import write_json
from orchestrator.records.locks import ControllerLock
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import EvaluationSchedule, TrialSpec
from orchestrator.submit.submission import cancel

ESCAPE = "no file \x1b]0;owned\x07\x1b[2K\r\x9b31m\u202efdp"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("needs 1 GPU; größer, 日本語", "needs 1 GPU; größer, 日本語"),
        ("a\nb\tc\u00a0d", "a b c d"),
        ("\x1b[31m\x07\x00\x7f", r"\x1b[31m\x07\x00\x7f"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202efdp", r"\u202efdp"),
        ("\ud800", r"\ud800"),
    ],
)
def test_control_characters_are_written_out(text, shown):
    assert printable(text) == shown


def make_spec(**fields):
    return TrialSpec(
        sweep="s",
        data={"source": "x"},
        model={"architecture": "dense"},
        train={"tokens": 100, "batch_tokens": 10, "seq_len": 10},
        seed=0,
        **fields,
    )


def test_no_escape_of_a_record_reaches_the_status(tmp_path):
    sweep = SweepDir(tmp_path / "s")
    spec = make_spec(preset=ESCAPE)
    trial = sweep.trial(spec.trial_id)
    trial.create(spec)
    attempt = trial.new_attempt({"submission": 1})
    end = {"outcome": "user_error", "reason": ESCAPE, "ended_at": 1.0, "final": True}
    write_json(attempt.path / "end.json", end)
    (sweep.path / "nodes").mkdir()
    controller = {"pid": 1, "host": ESCAPE, "start_ticks": 1, "submission": 1, "updated_at": 0.0}
    write_json(sweep.path / "controller.json", controller)
    write_json(
        sweep.path / "nodes" / "n.excluded.json",
        {"node": ESCAPE, "since": 1.0, "why": ESCAPE, "submission": 1},
    )

    status = status_from_disk(sweep, now=1.0)

    assert status.trials[0].reason.startswith(r"no file \x1b]0;owned")
    assert status.excluded
    shown = [status.controller, *status.excluded, status.trials[0].reason, status.trials[0].preset]
    assert all(text.isprintable() for text in shown)


def test_a_trial_that_cannot_be_read_is_one_sentence_beside_the_others(tmp_path):
    sweep = SweepDir(tmp_path / "s")
    for seed in (0, 1, 2):
        spec = TrialSpec(
            sweep="s",
            data={"source": "x"},
            model={"architecture": "dense"},
            train={"tokens": 100, "batch_tokens": 10, "seq_len": 10},
            seed=seed,
        )
        sweep.trial(spec.trial_id).create(spec)
    newer, wrong, good = sweep.trials()
    record = json.loads((newer.path / "spec.json").read_text())
    write_json(newer.path / "spec.json", {**record, "colour": "red"})
    attempt = wrong.new_attempt({"submission": 1})
    write_json(attempt.path / "end.json", {"outcome": "exploded", "reason": "", "final": False})
    write_json(good.path / "result.json", {"metrics": {}})

    status = status_from_disk(sweep, now=1.0)

    assert [trial.trial_id for trial in status.trials] == [good.trial_id]
    assert [
        s.removeprefix(f"{sweep.path}/trials/").partition(":")[0] for s in status.unreadable
    ] == [
        f"{newer.trial_id}/spec.json",
        f"{wrong.trial_id}/attempts/0001/end.json",
    ]
    assert not status.complete
    assert cancel(sweep, sweep.trials(), whole_sweep=True) == [newer.trial_id, wrong.trial_id]
    plan = retry_requests.plan_retry(
        sweep, sweep.trials(), controlled=frozenset(), whole_sweep=True
    )
    assert plan.refused[0].startswith("unreadable (")


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    ("metrics", "shown"),
    [
        (
            {"time/train_s": 200.0, "time/benchmarks_s": 7.0},
            "benchmarks took 3.5 % of the training time",
        ),
        (
            {"time/train_s": 200.0, "time/benchmarks_s": 10.1, "eval/unfinished_tasks": 2.0},
            "benchmarks took 5 % of the training time, tasks left out: msq after step 5; "
            "qa after step 5, 10",
        ),
        ({"time/train_s": 200.0}, ""),
        ({"time/train_s": 0.2, "skipped": 1.0}, "benchmarks skipped: too short"),
        ({"time/train_s": 0.2, "skipped": 1.0, "eval/qa/acc": 0.5}, ""),
    ],
)
def test_the_share_of_benchmarks_is_shown(metrics, shown, cached, tmp_path):
    sweep = SweepDir(tmp_path / "s")
    skipped = "too short" if "skipped" in metrics else None
    asked = EvaluationSchedule(suites=("small",), rows=10, skipped=skipped)
    spec = make_spec(evaluation=asked)
    trial = sweep.trial(spec.trial_id)
    trial.create(spec)
    result = {"trial_id": spec.trial_id, "attempt": 1, "steps": 10, "metrics": metrics}
    write_json(trial.path / "result.json", result)
    at_5, at_10 = ({"step": n, "unfinished": ["qa"], "metrics": {}} for n in (5, 10))
    suite = {"5": {**at_5, "unfinished": ["msq"]}}  # `memscale evaluate` asked it after step 10
    write_json(
        trial.path / "evaluation.json",
        {
            "suites": {"q": at_10, "own": {"step": 10, "metrics": {}}},
            "earlier": {"own": suite, "q": {"5": at_5}},
        },
    )
    (status,) = status_from_disk(sweep, now=1.0).trials
    if cached:
        times = (status_cache.result_ns(trial.path), status_cache.spec_ns(trial.path))
        line = cache_line(status, result_ns=times[0], spec_ns=times[1])
        (sweep.path / status_cache.FILE).write_text(json.dumps(line) + "\n")
        (status,) = status_from_disk(sweep, now=1.0).trials

    assert status.benchmarks == shown


@pytest.mark.parametrize("silent_s", [0, 30, 300])
def test_a_controller_that_lives_and_writes_nothing_is_told(tmp_path, silent_s):
    """As where its quota is used up: the disk itself has room."""
    sweep = SweepDir(tmp_path / "s")
    sweep.path.mkdir()
    lock = ControllerLock(sweep, submission=1)
    lock.acquire()
    last = time.time() - silent_s
    os.utime(sweep.path / "controller.json", (last, last))
    try:
        told = status_from_disk(sweep).full_disk
    finally:
        lock.release()

    assert told == "" if silent_s < 60 else "perhaps your disk quota is used up" in told
    assert status_from_disk(sweep).full_disk == "", "it has ended"
