"""Trials that have not started share one file; what reads trials does not see a difference."""

from dataclasses import replace

import pytest

from orchestrator.control.status import status_from_disk
from orchestrator.records import unstarted_specs
from orchestrator.records.errors import StoreError
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Resources, TrialSpec, TrialState


def spec_of(seed, **changes):
    return TrialSpec(
        sweep="s",
        data={"source": "x"},
        model={"architecture": "dense"},
        train={"tokens": 1000, "batch_tokens": 10, "seq_len": 10},
        seed=seed,
        **changes,
    )


@pytest.fixture
def sweep(tmp_path):
    """Seeds 0 to 2; seed 1 has a folder, as if its first attempt had been started."""
    sweep = SweepDir(tmp_path / "s")
    sweep.add_trials(spec_of(seed) for seed in range(3))
    sweep.trial(spec_of(1).trial_id).create(spec_of(1))
    return sweep


def test_every_reader_sees_trials_with_and_without_a_folder(sweep):
    specs = sorted((spec_of(seed) for seed in range(3)), key=lambda spec: spec.trial_id)

    assert sweep.trial_folders() == {spec_of(1).trial_id}
    assert [trial.spec() for trial in sweep.trials()] == specs
    assert [trial.record().spec for trial in sweep.trials()] == specs
    assert [record.spec for record in sweep.snapshot().trials.values()] == specs
    assert [trial.state() for trial in sweep.trials()] == [TrialState.WAITING] * 3
    assert [status.trial_id for status in status_from_disk(sweep).trials] == [
        spec.trial_id for spec in specs
    ]


def test_adding_again_changes_what_is_not_identity_and_keeps_other_trials(sweep):
    changed = Resources(gpus=0, cpus=3)

    sweep.add_trials(spec_of(seed, resources=changed) for seed in (1, 2))

    specs = {trial.spec().seed: trial.spec() for trial in sweep.trials()}
    assert specs[0].resources == Resources()
    assert specs[1].resources == specs[2].resources == changed
    assert unstarted_specs.read(sweep.path).keys() == {spec_of(0).trial_id, spec_of(2).trial_id}


def test_the_spec_in_a_folder_counts_more_than_a_line(sweep):
    started = sweep.trial(spec_of(1).trial_id)
    started.create(spec_of(1, origin="changed since"))

    assert started.spec().origin == "changed since"

    (started.path / "spec.json").write_text("{")
    with pytest.raises(StoreError, match=r"spec\.json: not valid JSON"):
        started.spec()


def test_adding_again_takes_a_request_to_cancel_back(sweep):
    trial = sweep.trial(spec_of(0).trial_id)
    trial.request_cancel("me")
    assert trial.state() is TrialState.CANCELLED
    assert trial.spec() == spec_of(0)

    sweep.add_trials([spec_of(0)])

    assert trial.state() is TrialState.WAITING


def test_an_altered_or_damaged_line_sets_its_trial_aside_until_it_is_added_again(sweep):
    file = sweep.path / unstarted_specs.FILE
    altered, damaged = (spec_of(seed).trial_id for seed in (0, 2))
    lines = [
        line.replace('"tokens": 1000', '"tokens": 2000') if altered in line else line[:-9]
        for line in file.read_text().splitlines()
    ]
    file.write_text("\n".join(lines))

    unreadable = sweep.snapshot().unreadable

    assert unreadable.keys() == {altered, damaged}
    assert "its content hashes to" in unreadable[altered]
    assert f"the line of {damaged} is not valid JSON" in unreadable[damaged]
    assert sweep.snapshot().trials.keys() == {spec_of(1).trial_id}

    sweep.add_trials([spec_of(0), spec_of(2)])
    assert not sweep.snapshot().unreadable


def test_a_line_torn_within_its_id_is_no_trial(sweep):
    file = sweep.path / unstarted_specs.FILE
    file.write_bytes(file.read_bytes() + b'{"trial_id": "de')

    assert sweep.snapshot().trials.keys() == {spec_of(seed).trial_id for seed in range(3)}


def test_what_a_killed_writer_left_is_removed(sweep):
    left = sweep.path / f".{unstarted_specs.FILE}-0123abcd"
    left.touch()

    sweep.add_trials([replace(spec_of(0), origin="again")])

    assert not left.exists()


def test_a_folder_that_lost_its_spec_gets_it_by_a_submission_and_keeps_all_else(sweep):
    """As the advice says: whoever deleted the folder would lose its checkpoints."""
    spec = spec_of(1)
    trial = sweep.trial(spec.trial_id)
    trial.new_attempt({"submission": 1})
    (trial.checkpoints / "step-00000010").mkdir(parents=True)
    (trial.path / "spec.json").unlink()
    (sweep.path / unstarted_specs.FILE).unlink()
    with pytest.raises(StoreError, match="no spec.json; submit the sweep again, which writes it"):
        trial.spec()

    sweep.add_trials([spec])

    record = sweep.snapshot().trials[spec.trial_id]
    assert record.spec == spec
    assert record.checkpoint_step == 10
    assert len(record.attempts) == 1
