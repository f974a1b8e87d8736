"""GPUs of a record: those that the attempt could use, not all of its machine."""

import pytest

from orchestrator.records import provenance
from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.json_files import write_json
from orchestrator.records.usable_gpus import usable_gpus

MACHINE = [{"name": f"H{place}", "uuid": f"GPU-{place}abc"} for place in range(4)]


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        (None, ["H0", "H1", "H2", "H3"]),
        ("1", ["H1"]),
        ("3, 0", ["H3", "H0"]),
        ("GPU-2", ["H2"]),
        ("", []),
        ("-1", []),
        # A part of a GPU: which one it is of is not known.
        ("MIG-5c02", ["H0", "H1", "H2", "H3"]),
        ("7", ["H0", "H1", "H2", "H3"]),
    ],
)
def test_the_variable_leaves_the_gpus_that_it_names(chosen, names):
    assert [gpu["name"] for gpu in usable_gpus(MACHINE, chosen)] == names


def test_a_record_names_the_gpus_that_its_process_could_use(monkeypatch):
    monkeypatch.setattr(provenance, "gpus", lambda: MACHINE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")

    assert provenance.record_environment()["hardware"]["gpus"] == [MACHINE[1]]


@pytest.mark.parametrize("listed", [MACHINE, [MACHINE[1]]], ids=["earlier version", "this one"])
def test_of_a_record_with_all_gpus_of_the_machine_the_usable_ones_are_read(tmp_path, listed):
    record = {
        "hardware": {"cpu": "abacus", "gpus": listed},
        "variables": {"CUDA_VISIBLE_DEVICES": "1"},
    }
    write_json(tmp_path / "environment.json", record)

    read = AttemptDir(tmp_path).environment()

    assert read == {**record, "hardware": {"cpu": "abacus", "gpus": [MACHINE[1]]}}


@pytest.mark.parametrize("record", [{}, {"hardware": {"gpus": MACHINE}}, {"git": {"commit": "c0"}}])
def test_what_a_record_does_not_say_stays_as_it_is(tmp_path, record):
    write_json(tmp_path / "environment.json", record)

    assert AttemptDir(tmp_path).environment() == record
