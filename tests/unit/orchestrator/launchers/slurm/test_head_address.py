"""Who may join whom."""

import stat

import pytest

from orchestrator.launchers.slurm.head_address import HeadAddress, HeadAddressFile
from orchestrator.records.errors import StoreError

OFFER = HeadAddress(address="10.0.0.1:4711", token="t" * 64)


def head_address(tmp_path, generation="12/0"):
    return HeadAddressFile(folder=tmp_path / "12", generation=generation)


def test_offered_taken_ended(tmp_path):
    head, node = head_address(tmp_path), head_address(tmp_path)
    assert not node.is_current()
    head.publish(OFFER)
    assert node.wait() == OFFER
    assert node.is_current()
    head.withdraw()
    assert not node.is_current()
    assert node.wait() is None


def test_the_token_is_nobody_elses_business(tmp_path):
    head_address(tmp_path).publish(OFFER)
    assert stat.S_IMODE((tmp_path / "12" / "head.json").stat().st_mode) == 0o600


def test_a_head_that_was_started_again_is_another_one(tmp_path):
    first, second = head_address(tmp_path), head_address(tmp_path, "12/1")
    first.publish(OFFER)
    assert not second.is_current()
    second.publish(OFFER)
    assert not first.is_current()


def test_a_node_of_an_earlier_head_leaves_at_once_and_one_of_a_later_head_waits(tmp_path):
    earlier, head, later = (head_address(tmp_path, f"12/{n}") for n in (9, 10, 11))
    head.publish(OFFER)
    assert earlier.wait(timeout_s=0) is None
    with pytest.raises(StoreError):
        later.wait(timeout_s=0, clock=iter(range(9)).__next__, sleep=lambda s: None)


def test_waiting_ends(tmp_path):
    now = iter(range(0, 1000, 100))
    with pytest.raises(StoreError, match="the head 12/0 did not come up in 250 s"):
        head_address(tmp_path).wait(timeout_s=250, clock=lambda: next(now), sleep=lambda s: None)
    assert head_address(tmp_path).wait(give_up=lambda: True) is None
