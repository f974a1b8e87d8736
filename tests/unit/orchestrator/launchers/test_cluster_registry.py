"""Registry of the sweeps of one cluster, with a dictionary as the key-value store."""

from orchestrator.launchers.cluster_registry import SILENT_S, ClusterRegistry
from orchestrator.scheduling.fair_share import SweepUsage


class Store:
    def __init__(self):
        self.lines = {}

    def put(self, name, value):
        self.lines[name] = value

    def get_all(self):
        return dict(self.lines)

    def delete(self, name):
        self.lines.pop(name, None)


def test_sweeps_read_each_other_until_they_leave():
    store = Store()
    one, two = ClusterRegistry(store, "/runs/one"), ClusterRegistry(store, "/runs/two")

    own, others = one.exchange(SweepUsage(wants_cpus=3, keeps=("n1",)))
    assert (own.sweep, others) == ("/runs/one", [])
    _, others = two.exchange(SweepUsage(priority=2))
    assert others == [own]
    assert one.exchange(SweepUsage())[1][0].priority == 2
    two.leave()
    assert one.exchange(SweepUsage())[1] == []


def test_a_line_that_does_not_change_is_of_a_dead_controller_whatever_its_clock_said():
    store, now = Store(), [0.0]
    ClusterRegistry(store, "/runs/dead").exchange(SweepUsage())
    living = ClusterRegistry(store, "/runs/living", clock=lambda: now[0])
    assert len(living.exchange(SweepUsage())[1]) == 1
    now[0] = SILENT_S
    assert len(living.exchange(SweepUsage())[1]) == 1
    now[0] = SILENT_S + 1
    assert living.exchange(SweepUsage())[1] == []
    ClusterRegistry(store, "/runs/dead").exchange(SweepUsage(started=1))  # it was started again
    assert len(living.exchange(SweepUsage())[1]) == 1


def test_who_starts_something_goes_behind_all_others():
    store = Store()
    one, two = ClusterRegistry(store, "one"), ClusterRegistry(store, "two")
    for started in (1, 2, 3):
        assert one.exchange(SweepUsage(started=started))[0].turn == started
    assert two.exchange(SweepUsage(started=1))[0].turn == 4
    assert two.exchange(SweepUsage(started=1))[0].turn == 4
    assert one.exchange(SweepUsage(started=4))[0].turn == 5


def test_a_line_of_another_version_is_left_alone():
    store = Store()
    store.put("newer", b'{"beat": 1, "unheard_of": 2}')
    store.put("noise", b"\xff")

    assert ClusterRegistry(store, "own").exchange(SweepUsage())[1] == []
    assert "newer" in store.lines
