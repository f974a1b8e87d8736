"""Places and waits that are worked out by hand; what always holds is in tests/property/test_simulation.py."""

from orchestrator.scheduling.demand import Demand, Node
from orchestrator.scheduling.interface import Running, Snapshot, schedule
from orchestrator.scheduling.wait_queue import Waiting
from orchestrator.simulation.simulate import simulate

GB = 10**9


def node(name, gpus=8, cpus=64, memory=None):
    return Node(
        node_id=name,
        host=name,
        cpus=cpus,
        gpus=tuple(map(str, range(gpus))),
        gpu_memory_bytes=memory,
    )


def trial(name, gpus, seconds=100.0, *, memory=0.0, **more):
    demand = Demand(cpus=1, gpus=gpus, gpu_memory_bytes=memory, gang_size=max(1, int(gpus)))
    return Waiting(trial_id=name, demand=demand, predicted_s=seconds, **more)


def placed(decided):
    return {p.trial_id: (p.node_id, p.gpus, p.share) for p in decided.placements}


def test_gang_lies_on_one_node_when_one_holds_it_even_if_two_are_emptier():
    decided = schedule(
        Snapshot(nodes=[node("a", 4), node("b", 4), node("c", 8)], waiting=[trial("t", 8)]), 0
    )

    (only,) = decided.placements
    assert (only.node_id, len(only.gpus), only.other_nodes) == ("c", 8, ())


def test_gang_larger_than_a_node_takes_whole_nodes_and_nobody_else_gets_in():
    nodes = [node("a"), node("b"), node("c")]
    decided = schedule(Snapshot(nodes=nodes, waiting=[trial("t", 12), trial("s", 0.1, 50.0)]), 0)

    gang, small = decided.placements
    assert (gang.node_id, [part.node_id for part in gang.other_nodes]) == ("a", ["b"])
    assert len(gang.gpus) == 8
    assert small.node_id == "c"


def test_waiting_gang_says_how_many_whole_nodes_it_lacks():
    nodes = [node("a"), node("b")]
    held = Running(
        trial_id="r", node_id="a", demand=Demand(cpus=1, gpus=0.5), gpus=("3",), predicted_end=60.0
    )
    decided = schedule(Snapshot(nodes=nodes, running=[held], waiting=[trial("t", 16)]), 0)

    assert decided.waits["t"] == (
        "needs 16 GPUs and 1 core on 2 whole nodes; 1 of 2 nodes empty; next in line, starts in about 60 s"
    )


def test_backfill_takes_what_ends_exactly_when_the_next_in_line_starts():
    held = Running(
        trial_id="r",
        node_id="a",
        demand=Demand(cpus=1, gpus=4),
        gpus=("0", "1", "2", "3"),
        predicted_end=60.0,
    )
    for seconds, starts in ((60.0, {"small"}), (61.0, set())):
        waiting = [trial("large", 8, 1_000.0), trial("small", 4, seconds)]
        decided = schedule(Snapshot(nodes=[node("a")], running=[held], waiting=waiting), 0)
        assert placed(decided).keys() == starts


def test_a_sweep_that_has_just_started_a_trial_lets_the_other_go_first():
    waiting = [
        trial(f"{sweep}{i}", 1, seconds, sweep=sweep)
        for sweep, seconds in (("long", 200.0), ("short", 100.0))
        for i in range(2)
    ]
    decided = schedule(Snapshot(nodes=[node("a", 2)], waiting=waiting), 0)

    assert {name[:-1] for name in placed(decided)} == {"long", "short"}


def test_gang_of_one_process_is_not_torn_apart():
    whole = Waiting(trial_id="t", demand=Demand(cpus=1, gpus=16.0), predicted_s=1.0)
    decided = schedule(Snapshot(nodes=[node("a"), node("b")], waiting=[whole]), 0)

    assert decided.impossible == {"t"}
    assert decided.waits["t"].startswith(
        "needs 16 GPUs and 1 core on one node; the largest has 8 GPUs"
    )


def test_running_gang_holds_its_nodes_whole():
    gang = Running(
        trial_id="r",
        node_id="a",
        other_nodes=("b",),
        demand=Demand(cpus=12, gpus=12.0),
        predicted_end=9.0,
    )
    decided = schedule(
        Snapshot(nodes=[node("a"), node("b")], running=[gang], waiting=[trial("t", 0.1)]), 0
    )

    assert decided.placements == ()


def test_share_grows_with_what_memory_was_measured():
    snapshot = Snapshot(
        nodes=[node("a", 1, memory=80 * GB)],
        waiting=[trial(f"t{i}", 0.25, memory=30 * GB, order=i) for i in range(3)],
    )
    decided = schedule(snapshot, 0)

    assert placed(decided) == {"t0": ("a", ("0",), 0.38), "t1": ("a", ("0",), 0.38)}
    assert decided.waits["t2"] == (
        "needs 0.25 GPU and 1 core and, for its memory, 0.38 of a GPU; at most 0.24 of a GPU free, 62 of 64 cores free"
    )


def test_trial_goes_where_its_memory_fits():
    nodes = [node("a", 1, memory=40 * GB), node("b", 1, memory=80 * GB)]
    decided = schedule(Snapshot(nodes=nodes, waiting=[trial("t", 1, memory=60 * GB)]), 0)

    assert placed(decided)["t"][0] == "b"


def test_memory_that_no_gpu_has_is_said():
    decided = schedule(
        Snapshot(nodes=[node("a", 1, memory=40 * GB)], waiting=[trial("t", 1, memory=60 * GB)]), 0
    )

    assert decided.waits["t"] == (
        "needs 55.9 GiB of GPU memory; the largest node's GPUs have 37.3 GiB: unset resources.micro_batch_tokens, raise ranks, or add a node"
    )


def test_fraction_fills_a_shared_gpu_before_it_breaks_a_whole_one():
    """Node a has fewer free GPUs, but its only one is whole."""
    held = [
        Running(trial_id=f"a{i}", node_id="a", demand=Demand(cpus=1, gpus=1.0), gpus=(str(i),))
        for i in range(7)
    ]
    held.append(Running(trial_id="b", node_id="b", demand=Demand(cpus=1, gpus=0.5), gpus=("6",)))
    decided = schedule(
        Snapshot(nodes=[node("a"), node("b")], running=held, waiting=[trial("t", 0.25)]), 0
    )

    assert placed(decided)["t"] == ("b", ("6",), 0.25)


def test_room_is_kept_on_the_gpus_that_are_busy_so_that_free_ones_stay_open():
    """The pair will start on the two GPUs of the running trial; the third is nobody's until then and after."""
    held = Running(
        trial_id="r",
        node_id="a",
        demand=Demand(cpus=1, gpus=2.0),
        gpus=("0", "1"),
        predicted_end=50.0,
    )
    snapshot = Snapshot(
        nodes=[node("a", 3)],
        running=[held],
        waiting=[trial("pair", 2), trial("long", 1, 900.0)],
    )

    assert placed(schedule(snapshot, 0)) == {"long": ("a", ("2",), 1.0)}


def test_shorter_trial_of_a_class_gets_in_where_longer_ones_may_not():
    held = Running(
        trial_id="r", node_id="a", demand=Demand(cpus=1, gpus=1.0), gpus=("0",), predicted_end=50.0
    )
    snapshot = Snapshot(
        nodes=[node("a", 2)],
        running=[held],
        waiting=[trial("pair", 2), *(trial(f"t{s}", 1, float(s)) for s in (90, 70, 40, 30))],
    )

    assert list(placed(schedule(snapshot, 0))) == ["t40"]


def test_simulated_times_are_those_worked_out_by_hand():
    """Two GPUs: the pair goes first, then 5 and 3 s beside each other, then 2 s on the GPU that is free first."""
    trials = [
        trial("pair", 2, 4.0),
        trial("five", 1, 5.0),
        trial("three", 1, 3.0),
        trial("two", 1, 2.0),
    ]
    simulation = simulate([node("a", 2)], trials)

    times = {run.trial.trial_id: (run.start_s, run.end_s) for run in simulation.runs}
    assert times == {"pair": (0, 4), "five": (4, 9), "three": (4, 7), "two": (7, 9)}
    assert simulation.makespan_s == simulation.bound_s == 9
    assert simulation.utilisation == 1.0
    assert simulation.waited_s() == [0, 4, 4, 7]
