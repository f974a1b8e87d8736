import json
import socket
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workloads.distributed import process_group
from workloads.distributed.process_group import CommunicationError, RankGroup

CPU = torch.device("cpu")


@given(n=st.integers(0, 1000), size=st.integers(1, 17))
def test_shares_are_contiguous_even_and_complete(n, size):
    shares = [RankGroup(rank=rank, size=size).local_range(n) for rank in range(size)]

    assert [i for share in shares for i in share] == list(range(n))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_one_rank_needs_nobody(tmp_path):
    with process_group.join(rank=0, size=1, device=CPU, rendezvous=tmp_path / "port") as world:
        value = torch.tensor([3.0])
        world.all_reduce_sum([value])
        world.barrier()

        assert value.item() == 3.0
        assert world.broadcast("x") == "x"
        assert world.is_main
        assert not torch.distributed.is_initialized()


def test_a_rank_whose_leader_never_comes_says_so(tmp_path):
    missing = tmp_path / "port"

    with (
        pytest.raises(
            CommunicationError,
            match=r"rank 1 of 2: could not reach rank 0 through .*port: the file never",
        ),
        process_group.join(rank=1, size=2, device=CPU, rendezvous=missing, timeout_s=0.05),
    ):
        pass


def test_a_rank_that_finds_an_old_address_only_says_so(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    left_behind = tmp_path / "port"
    left_behind.write_text(json.dumps({"host": socket.gethostname(), "port": port}))

    with pytest.raises(CommunicationError, match=rf":{port} did not answer"):
        process_group._find(left_behind, rank=1, size=2, deadline=time.monotonic() + 0.05)


LATE = """
import time
import torch
from workloads.distributed import process_group
process_group._CONNECT_S = 0.2
if rank == 2:
    time.sleep(1.0)
with process_group.join(
    rank=rank, size=3, device=torch.device("cpu"), rendezvous=meet, timeout_s=20.0
) as world:
    assert world.all_gather_objects(rank) == [0, 1, 2]
"""


def test_ranks_wait_for_one_that_comes_later_than_a_try_to_connect_lasts(tmp_path, run_ranks):
    run_ranks(LATE, 3, {"meet": tmp_path / "meet"})


def test_a_rank_that_nobody_joins_says_who_is_missing(tmp_path):
    with (
        pytest.raises(CommunicationError, match=r"rank 0 of 2: rank 1 did not come in time"),
        process_group.join(
            rank=0, size=2, device=CPU, rendezvous=tmp_path / "port", timeout_s=0.05
        ),
    ):
        pass


def test_ranks_that_all_came_go_on_only_if_none_gave_up_meanwhile():
    store = torch.distributed.HashStore()
    store.set("place/1", "{}")

    with pytest.raises(CommunicationError, match="rank 0 of 2: rank 1 did not come in time"):
        process_group._exchange_places(
            store, rank=0, size=2, device=CPU, deadline=time.monotonic() + 0.05
        )


def test_a_rank_outside_the_group_is_refused(tmp_path):
    with (
        pytest.raises(ValueError, match=r"rank must lie in 0\.\.1, got 2"),
        process_group.join(rank=2, size=2, device=CPU, rendezvous=tmp_path / "port"),
    ):
        pass


@pytest.mark.parametrize(("backend", "devices"), [("nccl", [3]), ("gloo", None)])
def test_a_barrier_of_gpus_says_which_one_waits(monkeypatch, backend, devices):
    asked = []
    monkeypatch.setattr(torch.distributed, "get_backend", lambda group: backend)
    monkeypatch.setattr(torch.distributed, "barrier", lambda **how: asked.append(how))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)

    RankGroup(size=2).barrier()

    assert asked == [{"group": None, "device_ids": devices}]
