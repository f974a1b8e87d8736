"""How a launch is dealt out: to ranks, to GPUs, and of a gang to nodes."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.control.launcher_port import Launch
from orchestrator.scheduling.demand import NodeGpus

LAUNCH = Launch(
    trial_id="t",
    trial_path="/t",
    attempt=1,
    node_id="n0",
    ranks=5,
    cpus=2,
    gpus=5.0,
    gpu_ids=("0", "1"),
    cache="c",
)


def test_on_one_node_all_ranks_are_there():
    assert list(LAUNCH.local_ranks) == [0, 1, 2, 3, 4]
    assert LAUNCH.local_gpus == 5.0
    assert [request.address for request in LAUNCH.rank_requests(["a"] * 5)] == [None] * 5


def test_the_parts_of_a_gang_go_to_their_nodes_in_order():
    gang = replace(LAUNCH, other_nodes=(NodeGpus(node_id="n1", gpus=("0", "1", "2")),))
    first, second = gang.on_node(0, address="10.0.0.1"), gang.on_node(1, address="10.0.0.2")

    assert [part.node_id for part in gang.all_nodes] == ["n0", "n1"]
    assert (list(first.local_ranks), list(second.local_ranks)) == ([0, 1], [2, 3, 4])
    assert (first.local_gpus, second.local_gpus) == (2.0, 3.0)
    requests = [*first.rank_requests(["0", "1"]), *second.rank_requests(["0", "1", "2"])]
    assert [request.rank for request in requests] == [0, 1, 2, 3, 4]
    assert [request.gpus for request in requests] == [("0",), ("1",), ("0",), ("1",), ("2",)]
    assert {request.ranks for request in requests} == {5}
    assert [request.address for request in requests] == ["10.0.0.1"] * 2 + ["10.0.0.2"] * 3


@given(ranks=st.integers(1, 17), gpus=st.integers(1, 17))
def test_ranks_share_a_gpu_only_if_there_are_fewer_than_ranks(ranks, gpus):
    ids = [str(i) for i in range(gpus)]
    seen = [request.gpus for request in replace(LAUNCH, ranks=ranks).rank_requests(ids)]

    assert all(seen)
    if gpus >= ranks:
        assert [gpu for each in seen for gpu in each] == ids
    else:
        held = [seen.count((gpu,)) for gpu in ids]
        assert sum(held) == ranks
        assert max(held) - min(held) <= 1


@given(ranks=st.integers(1, 64), nodes=st.integers(1, 8))
def test_every_rank_is_on_one_node_and_nodes_differ_by_one_at_most(ranks, nodes):
    gang = replace(
        LAUNCH, ranks=ranks, other_nodes=tuple(NodeGpus(node_id=f"n{i}") for i in range(1, nodes))
    )
    shares = [list(gang.on_node(part).local_ranks) for part in range(nodes)]

    assert [rank for share in shares for rank in share] == list(range(ranks))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
