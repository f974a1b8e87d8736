"""statuses.jsonl saves reading; it never changes what `status` says."""

import os

import pytest

from orchestrator.control.failure_classifier import AttemptExit
from orchestrator.control.launcher_port import Launch
from orchestrator.control.loop import Controller
from orchestrator.control.status import status_from_disk
from orchestrator.records import status_cache
from orchestrator.records.json_files import remove_temporary, write_json
from orchestrator.records.status_cache import FILE, StatusCache
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import Resources, TrialSpec, TrialState
from orchestrator.scheduling.demand import Node


class AtOnce:
    """A launcher whose attempts of even seeds are done at once; those of odd ones fail."""

    def __init__(self):
        self.held: list[Launch] = []

    def start(self):
        """Nothing to start."""

    close = start

    def nodes(self):
        return (Node(node_id="n", host="h", cpus=2, gpus=()),)

    def launch(self, launch):
        self.held.append(launch)
        return ()

    def poll(self):
        held, self.held = self.held, []
        return [self._end(launch) for launch in held]

    def _end(self, launch):
        (request,) = launch.rank_requests(())
        odd = request.trial.spec().seed % 2
        if not odd:
            result = {
                "steps": 100,
                "finished_at": 1.0,
                "attempt": 1,
                "metrics": {"train/loss": 2.5},
            }
            write_json(request.trial.path / "result.json", result)
        return AttemptExit(
            trial_id=launch.trial_id, attempt=launch.attempt, exit_codes={0: 82 * odd}
        )

    def end_orphans(self, processes):
        return []


@pytest.fixture
def sweep(tmp_path):
    """Seeds 0 to 3 ran; 4 and 5 were asked for later and wait, 5 is cancelled."""
    sweep = SweepDir(tmp_path / "s")
    specs = [
        TrialSpec(
            sweep="s",
            data={"source": "x"},
            model={"architecture": "dense"},
            train={"tokens": 1000, "batch_tokens": 10, "seq_len": 10},
            seed=seed,
            preset="1m",
            resources=Resources(gpus=0),
        )
        for seed in range(6)
    ]
    sweep.add_trials(specs)
    ids = [spec.trial_id for spec in specs]
    run(sweep, ids[:4])
    sweep.add_submission({"trial_ids": ids})
    StatusCache(sweep).reset([facts(sweep, trial_id) for trial_id in ids])
    sweep.trial(ids[5]).request_cancel("me")
    return sweep


def run(sweep, ids):
    Controller(
        sweep,
        submission=1,
        trial_ids=ids,
        launcher=AtOnce(),
        cache=sweep.path,
        sleep=lambda s: None,
    ).run()


def facts(sweep, trial_id):
    seed = sweep.trial(trial_id).spec().seed
    return {
        "spec_ns": status_cache.SpecTimes(sweep).ns(trial_id),
        "trial_id": trial_id,
        "architecture": "dense",
        "preset": "1m",
        "seed": seed,
        "steps": 100,
    }


def by_folders(sweep):
    (sweep.path / FILE).rename(sweep.path / "aside")
    try:
        return status_from_disk(sweep, now=5.0)
    finally:
        (sweep.path / "aside").rename(sweep.path / FILE)


def test_status_is_the_same_with_the_file_as_without(sweep):
    status = status_from_disk(sweep, now=5.0)

    states = [trial.state.value for trial in status.trials]
    assert states == ["done", "failed", "done", "failed", "waiting", "cancelled"]
    assert status.trials[0].loss == 2.5
    assert status == by_folders(sweep)


def test_done_and_untouched_trials_are_not_read(sweep, monkeypatch):
    unread = [t.trial_id for t in status_from_disk(sweep).trials if t.state != TrialState.FAILED]
    record = TrialDir.record

    def counted(trial, **how):
        assert trial.trial_id not in unread
        return record(trial, **how)

    monkeypatch.setattr(TrialDir, "record", counted)

    assert [t.trial_id for t in status_from_disk(sweep).trials if t.trial_id in unread] == unread


@pytest.mark.parametrize("which", [0, 4], ids=["done", "waiting"])
def test_a_spec_damaged_since_is_noticed(sweep, which):
    trial_id = status_from_disk(sweep).trials[which].trial_id
    spec = sweep.trial(trial_id).path / "spec.json" if which == 0 else sweep.path / "specs.jsonl"
    spec.write_text(
        "".join(
            line[:-100] + "\n" if trial_id in line or which == 0 else line
            for line in spec.read_text().splitlines(keepends=True)
        )
    )
    later = spec.stat().st_mtime_ns + 1
    os.utime(spec, ns=(later, later))

    status = status_from_disk(sweep, now=5.0)

    assert len(status.trials) == 5
    (sentence,) = status.unreadable
    assert str(spec) in sentence
    assert "not valid JSON" in sentence
    assert not status.complete


def test_a_line_counts_only_while_the_folder_agrees(sweep):
    done, _, again, *_ = (sweep.trial(t.trial_id) for t in status_from_disk(sweep).trials)
    (done.path / "result.json").unlink()
    result = again.result()
    write_json(again.path / "result.json", {**result, "metrics": {"train/loss": 1.25}})
    later = status_cache.result_ns(again.path) + 1
    os.utime(again.path / "result.json", ns=(later, later))
    waiting = sweep.trial(status_from_disk(sweep).trials[4].trial_id)
    waiting.path.mkdir()
    waiting.new_attempt({"submission": 1})

    status = status_from_disk(sweep, now=5.0)

    assert status == by_folders(sweep)
    assert status.trials[0].state is not TrialState.DONE
    assert status.trials[2].loss == 1.25
    assert status.trials[4].attempt == 1


@pytest.mark.parametrize("damage", [b'{"trial_id": "den', b"\n\n[1]\n", b"\xff\xfe"])
def test_damage_is_passed_over_and_mended_by_the_next_controller(sweep, damage):
    before = status_from_disk(sweep, now=5.0)
    with (sweep.path / FILE).open("ab") as file:
        file.write(damage)

    assert status_from_disk(sweep, now=5.0) == before

    run(sweep, [t.trial_id for t in before.trials[:4]])
    assert damage not in (sweep.path / FILE).read_bytes()
    assert len((sweep.path / FILE).read_bytes().splitlines()) == 6


def test_only_what_killed_writers_left_is_removed(tmp_path):
    gone = [".heartbeat.json-ab_cd012", ".result-0003.json"]
    stays = ["heartbeat.json", ".hidden", ".tracking.json-abcd0123", ".nfs-short"]
    for name in gone + stays:
        (tmp_path / name).touch()

    remove_temporary(tmp_path, but=("tracking.json",))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(stays)

    remove_temporary(tmp_path, of="tracking.json")
    remove_temporary(tmp_path / "not there")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        set(stays) - {".tracking.json-abcd0123"}
    )
