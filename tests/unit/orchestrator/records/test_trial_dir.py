import json

import pytest

from orchestrator.records.errors import StoreError
from orchestrator.records.json_files import write_json
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import TrialSpec, TrialState

SPEC = TrialSpec(
    sweep="s",
    data={"source": "x"},
    model={"architecture": "dense"},
    train={"tokens": 100, "batch_tokens": 10},
    seed=0,
)


@pytest.fixture
def sweep(tmp_path):
    return SweepDir(tmp_path / "s")


@pytest.fixture
def trial(sweep):
    trial = sweep.trial(SPEC.trial_id)
    trial.create(SPEC)
    return trial


def end(trial, outcome, *, final):
    write_json(
        trial.attempts()[-1].path / "end.json", {"outcome": outcome, "reason": "x", "final": final}
    )


def test_spec_comes_back_as_it_was(trial):
    assert trial.spec() == SPEC


def test_altered_spec_is_refused(trial):
    record = json.loads((trial.path / "spec.json").read_text())
    (trial.path / "spec.json").write_text(json.dumps({**record, "seed": 7}))

    with pytest.raises(StoreError, match="its content hashes to"):
        trial.spec()


def test_trial_lives_in_the_folder_of_its_name(sweep):
    with pytest.raises(ValueError, match="a trial lives in the folder of its name"):
        sweep.trial("dense-000000000000").create(SPEC)


def test_state_follows_the_files(trial):
    assert trial.state() is TrialState.WAITING
    trial.new_attempt({"submission": 1})
    assert trial.state() is TrialState.RUNNING
    end(trial, "killed", final=False)
    assert trial.state() is TrialState.WAITING
    trial.new_attempt({"submission": 1})
    end(trial, "user_error", final=True)
    assert trial.state() is TrialState.FAILED
    trial.request_cancel("somebody, who was late")
    assert trial.state() is TrialState.FAILED
    trial.new_attempt({"submission": 2})
    end(trial, "interrupted", final=False)
    assert trial.state() is TrialState.CANCELLED
    write_json(trial.path / "result.json", {})
    assert trial.state() is TrialState.DONE


def test_a_request_to_retry_stands_until_the_next_attempt(trial):
    trial.request_cancel("somebody")
    trial.request_retry("somebody", after=0, at=1.0)
    assert trial.state() is TrialState.WAITING
    assert trial.retry_requested()

    trial.new_attempt({"submission": 1})
    assert not trial.retry_requested()
    end(trial, "user_error", final=True)
    assert trial.state() is TrialState.FAILED
    trial.request_retry("somebody", after=1, at=2.0)
    assert trial.state() is TrialState.WAITING
    trial.request_retry("an older request, written late", after=0, at=3.0)
    assert trial.retry_request() == {"by": "somebody", "asked_at": 2.0, "after": 1}
    trial.request_cancel("somebody")
    assert trial.state() is TrialState.CANCELLED


def test_attempts_are_numbered_from_one_and_never_reused(trial):
    first, second = trial.new_attempt({"why": "first"}), trial.new_attempt({"why": "second"})

    assert [a.number for a in trial.attempts()] == [first.number, second.number] == [1, 2]
    assert trial.attempt(2) == second
    assert second.launch() == {"why": "second"}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"step": "3"}'])
def test_a_damaged_heartbeat_counts_as_none(trial, content):
    trial.new_attempt({})
    (trial.path / "heartbeat.json").write_bytes(content)

    assert trial.heartbeat() is None
    assert trial.record().heartbeat is None
    assert trial.record(for_status=True).heartbeat is None


def test_later_attempt_wins_where_steps_overlap(trial):
    for values in ([1.0, 2.0, 3.0], [20.0, 30.0]):
        attempt = trial.new_attempt({})
        start = 4 - len(values) if attempt.number == 2 else 1
        lines = [
            {"t": step, "step": step, "metrics": {"loss": v}}
            for step, v in enumerate(values, start)
        ]
        attempt.journal.write_text("".join(json.dumps(line) + "\n" for line in lines))

    merged = trial.metrics()["loss"]

    assert {step: value for step, (_, value) in merged.items()} == {1: 1.0, 2: 20.0, 3: 30.0}
