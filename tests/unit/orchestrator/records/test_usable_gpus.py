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
        # CUDA stops at the first that is invalid.
        ("0,-1,1", ["H0"]),
        ("²", ["H0", "H1", "H2", "H3"]),
        # A part of a GPU: which one it is of is not known.
        ("MIG-5c02", ["H0", "H1", "H2", "H3"]),
        ("7", ["H0", "H1", "H2", "H3"]),
    ],
)
def test_the_variable_leaves_the_gpus_that_it_names(chosen, names):
    assert [gpu["name"] for gpu in usable_gpus(MACHINE, chosen)] == names


@pytest.mark.parametrize(
    ("launch", "gpus"),
    [
        ({}, [MACHINE[1]]),
        ({"ranks": 1, "gpus": 0.25}, [MACHINE[1]]),
        # Each rank is told of its own GPU alone.
        ({"ranks": 3, "gpus": 3.0}, MACHINE[:3]),
        ({"ranks": 8, "gpus": 8.0}, MACHINE),
    ],
)
def test_of_all_gpus_of_the_machine_those_of_the_attempt_are_read(
    tmp_path, monkeypatch, launch, gpus
):
    monkeypatch.setattr(provenance, "gpus", lambda: MACHINE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    record = provenance.record_environment()
    write_json(tmp_path / "environment.json", record)
    write_json(tmp_path / "launch.json", launch)

    read = AttemptDir(tmp_path).environment()

    assert read == {**record, "hardware": {**record["hardware"], "gpus": gpus}}


@pytest.mark.parametrize("record", [{}, {"hardware": {"gpus": MACHINE}}, {"git": {"commit": "c0"}}])
def test_what_a_record_does_not_say_stays_as_it_is(tmp_path, record):
    write_json(tmp_path / "environment.json", record)

    assert AttemptDir(tmp_path).environment() == record
