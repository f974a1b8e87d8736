"""No name of a sweep or a trial leads out of its folder, whatever text it is."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.control import node_exclusion
from orchestrator.records.errors import StoreError
from orchestrator.records.sweep_dir import SweepDir, sweep_dir
from orchestrator.scheduling.demand import Node

RUNS = Path(tempfile.gettempdir()) / "runs"
NASTY = st.one_of(
    st.text(max_size=300),
    st.text(alphabet="./\\-_a\0\n~$ ", max_size=12),
    st.lists(st.sampled_from(["..", ".", "a", "", "/", "~", "$HOME", "%2e%2e"])).map("/".join),
)


@given(name=NASTY)
@example(name="..")
@example(name="a\n")
@example(name="/etc/passwd")
def test_a_sweep_is_a_folder_in_runs_or_an_error(name):
    try:
        folder = sweep_dir(RUNS, name).path
    except StoreError:
        return
    assert folder.resolve().parent == RUNS.resolve()
    assert folder.name == name


@given(trial_id=NASTY)
@example(trial_id="../../dense-0123456789ab")
@example(trial_id="..")
def test_a_trial_is_a_folder_in_its_sweep_or_an_error(trial_id):
    sweep = SweepDir(RUNS / "s")
    try:
        folder = sweep.trial(trial_id).path
    except StoreError:
        return
    assert folder.resolve().parent == (RUNS / "s" / "trials").resolve()
    assert folder.name == trial_id


@given(host=NASTY)
def test_a_node_is_a_file_in_its_folder(host):
    (name,) = node_exclusion.node_names([Node(node_id="n", host=host, cpus=1, gpus=())]).values()
    file = RUNS / "nodes" / f"{name}.excluded.json"

    assert file.resolve().parent == (RUNS / "nodes").resolve()


def test_ordinary_names_pass():
    assert sweep_dir(RUNS, "memory_isoflop.v2-3").name == "memory_isoflop.v2-3"
    assert SweepDir(RUNS / "s").trial("product_key-3fa91c0b7d21").trial_id == (
        "product_key-3fa91c0b7d21"
    )


def test_errors_say_what_a_name_is():
    with pytest.raises(StoreError, match="use letters, digits"):
        sweep_dir(RUNS, "../up")
    with pytest.raises(StoreError, match="12 hex digits"):
        SweepDir(RUNS / "s").trial("../up")
