import io

import pytest
from rich.console import Console

from orchestrator.cli.render import progress
from orchestrator.control import node_exclusion
from orchestrator.control.node_exclusion import NODE_OUTCOMES, FailureTracker
from orchestrator.control.status import status_from_disk
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Outcome
from orchestrator.scheduling.demand import Node


def node(node_id, host):
    return Node(node_id=node_id, host=host, cpus=1, gpus=())


def record(tracker, where, kind, outcome=Outcome.HANG):
    return tracker.record(where, configuration=kind, trial_id=f"trial-{kind}", outcome=outcome)


def test_three_configurations_that_fail_on_a_node_exclude_it():
    tracker = FailureTracker()

    assert record(tracker, "bad", "a") is None
    assert record(tracker, "bad", "b", Outcome.KILLED) is None
    assert record(tracker, "bad", "c", Outcome.COMMUNICATION) == (
        "3 trials of different kinds failed there and none was done since: "
        "trial-a (hang), trial-b (killed), trial-c (communication)"
    )


def test_one_configuration_that_fails_repeatedly_counts_once():
    tracker = FailureTracker()

    assert [record(tracker, "n", "a") for _ in range(9)] == [None] * 9


def test_a_trial_that_is_done_there_clears_the_node():
    tracker = FailureTracker()
    record(tracker, "n", "a")
    record(tracker, "n", "b")
    record(tracker, "n", "c", Outcome.DONE)

    assert record(tracker, "n", "d") is None


def test_a_configuration_that_fails_on_other_nodes_does_not_count():
    tracker = FailureTracker()
    for kind in "abc":
        record(tracker, "other", kind)

    assert [record(tracker, "n", kind) for kind in "abcde"] == [None] * 5
    assert record(tracker, "n", "f") is not None


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - NODE_OUTCOMES))
def test_outcomes_that_no_node_causes_do_not_count(outcome):
    tracker = FailureTracker()

    assert [record(tracker, "n", kind, outcome) for kind in "abcdef"] == [None] * 6


def test_deleting_the_file_that_the_sentence_names_readmits_the_node(tmp_path):
    sweep = SweepDir(tmp_path / "s")
    sweep.path.mkdir()
    node_exclusion.exclude(sweep, "n1", why="3 trials failed", submission=1, now=5.0)
    sentences = node_exclusion.excluded(sweep.excluded_nodes())
    (file,) = (tmp_path / "s" / "nodes").iterdir()

    assert sentences["n1"].startswith("node n1 is left out: 3 trials failed; delete ")
    assert str(file) in sentences["n1"]
    file.unlink()
    assert node_exclusion.excluded(sweep.excluded_nodes()) == {}


def test_nodes_of_one_host_are_told_apart_and_no_host_names_its_way_out():
    nodes = [node("aaaaaaaaaa", "h"), node("bbbbbbbbbb", "h"), node("c", "../../etc/x")]

    assert node_exclusion.node_names(nodes) == {
        "aaaaaaaaaa": "h-aaaaaaaa",
        "bbbbbbbbbb": "h-bbbbbbbb",
        "c": "_.._etc_x",
    }


def test_the_last_node_is_never_excluded():
    nodes = [node("a", "a"), node("b", "b")]

    assert node_exclusion.usable_nodes(nodes, ["a"]) == [nodes[1]]
    assert node_exclusion.usable_nodes(nodes, ["a", "b"]) == nodes


def test_status_and_live_table_name_the_node_and_the_way_back(tmp_path):
    sweep = SweepDir(tmp_path / "s")
    sweep.path.mkdir()
    node_exclusion.exclude(sweep, "n1", why="3 trials failed there", submission=1, now=5.0)
    shown = Console(file=io.StringIO(), width=400)

    shown.print(progress.status_table(status_from_disk(sweep)))

    assert f"node n1 is left out: 3 trials failed there; delete {tmp_path}" in shown.file.getvalue()
