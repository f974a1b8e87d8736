"""Waiting for a node of Ray to come up, with a stand-in for Ray's state."""

import pytest

from orchestrator.launchers import ray_connect


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that goes on while somebody sleeps."""

    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

        def sleep(self, seconds):
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(ray_connect, "time", clock)
    return clock


@pytest.fixture
def node_at(clock, monkeypatch):
    """Have the node `ours` be registered at some second, beside another."""

    def registered(second):
        class State:
            def _initialize_global_state(self, options):
                assert options == "options of GCS"

            def node_table(self):
                there = ["other"] + (["ours"] if clock.now >= second else [])
                return [{"NodeID": node_id} for node_id in there]

        monkeypatch.setattr(ray_connect, "GlobalState", State)
        monkeypatch.setattr(
            ray_connect.services, "_get_gcs_client_options", lambda gcs: f"options of {gcs}"
        )

    return registered


def test_a_node_is_asked_for_as_soon_as_it_is_registered(clock, node_at):
    node_at(0.5)
    answer = ray_connect._once_registered(lambda gcs, node: (gcs, node, clock.now), "GCS", "ours")
    assert answer[:2] == ("GCS", "ours")
    assert 0.5 <= answer[2] < 0.5 + 2 * ray_connect.LOOK_S


def test_a_node_that_never_comes_is_left_to_ray(clock, node_at):
    node_at(1e9)

    def get_node(gcs, node):
        raise RuntimeError(f"no node after {clock.now:.0f} s")

    with pytest.raises(RuntimeError, match="no node after 30 s"):
        ray_connect._once_registered(get_node, "GCS", "ours")
