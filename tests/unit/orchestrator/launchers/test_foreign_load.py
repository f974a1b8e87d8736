"""Foreign load on a shared cluster as placeholder trials that the scheduler packs around."""

from orchestrator.launchers.foreign_load import LEAST_S, NodeUse, foreign_load
from orchestrator.scheduling.demand import Demand, Node
from orchestrator.scheduling.interface import Running, Snapshot, schedule
from orchestrator.scheduling.wait_queue import Waiting

NODE = Node(node_id="n", host="h", cpus=8, gpus=("4", "5", "6", "7"))


def taken(available, *, own=(), since=None, now=1000.0, **more):
    return foreign_load(
        [NODE],
        available={"n": available},
        own=own,
        since={} if since is None else since,
        now=now,
        **more,
    )


def summed(found):
    return sum(r.demand.cpus for r in found), sum(r.demand.gpus for r in found)


def test_what_is_free_or_ours_is_nobodys():
    own = [NodeUse(node_id="n", cpus=2, gpus=1.0, gpu_ids=("5",))]

    assert taken({"CPU": 8.0, "GPU": 4.0}) == []
    assert taken({"CPU": 6.0, "GPU": 3.0}, own=own) == []
    assert (
        taken(
            {"CPU": 5.0, "GPU": 2.0}, own=own, given_back=[NodeUse(node_id="n", cpus=1, gpus=1.0)]
        )
        == []
    )
    # Ray has not noticed yet that we hold something.
    assert taken({"CPU": 8.0, "GPU": 4.0}, own=own) == []


def test_foreign_load_are_put_on_gpus_that_are_not_ours():
    own = [NodeUse(node_id="n", cpus=2, gpus=2.0, gpu_ids=("4", "5"))]
    found = taken({"CPU": 3.0, "GPU": 0.5}, own=own)

    assert summed(found) == (3, 1.5)
    assert {gpu for running in found for gpu in running.gpus} == {"6", "7"}


def test_a_share_beside_ours_and_parts_of_cores():
    own = [NodeUse(node_id="n", cpus=1, gpus=0.25, gpu_ids=("4",))]

    assert summed(taken({"CPU": 6.5, "GPU": 0.0}, own=own)) == (1, 3.75)


def test_a_closed_node_is_full_but_for_what_is_ours():
    own = [NodeUse(node_id="n", cpus=2, gpus=1.0, gpu_ids=("4",))]

    assert summed(taken({"CPU": 6.0, "GPU": 3.0}, own=own, closed={"n"})) == (6, 3.0)


def test_foreign_load_are_expected_to_stay_as_long_again_as_they_have_been_there():
    since = {}
    assert taken({"CPU": 0.0}, since=since)[0].predicted_end == 1000.0 + LEAST_S
    assert taken({"CPU": 0.0}, since=since, now=3000.0)[0].predicted_end == 5000.0
    assert taken({"CPU": 8.0, "GPU": 4.0}, since=since, now=3001.0) == []
    assert taken({"CPU": 0.0}, since=since, now=3002.0)[0].predicted_end == 3002.0 + LEAST_S


def test_the_scheduler_places_beside_them():
    own = [NodeUse(node_id="n", cpus=1, gpus=1.0, gpu_ids=("6",))]
    mine = Running(
        trial_id="mine",
        node_id="n",
        demand=Demand(cpus=1, gpus=1.0),
        gpus=("6",),
        predicted_end=2000.0,
    )
    waiting = [
        Waiting(trial_id=f"t{i}", demand=Demand(cpus=1, gpus=1.0), predicted_s=10) for i in range(4)
    ]
    found = taken({"CPU": 4.0, "GPU": 1.0}, own=own)

    decided = schedule(Snapshot(nodes=[NODE], running=[mine, *found], waiting=waiting), 1000.0)

    (placed,) = decided.placements
    assert placed.gpus not in (("6",), *(running.gpus for running in found))
