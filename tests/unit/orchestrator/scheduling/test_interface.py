from orchestrator.scheduling.demand import Demand, Node
from orchestrator.scheduling.interface import Running, Schedule, Snapshot, schedule
from orchestrator.scheduling.wait_queue import Waiting

NODE = Node(node_id="a", host="a", cpus=4)
GPU_NODE = Node(node_id="g", host="g", cpus=16, gpus=("0", "1"))


def waiting(name, cpus=1, gpus=0.0, predicted_s=100.0, **more):
    return Waiting(
        trial_id=name, demand=Demand(cpus=cpus, gpus=gpus), predicted_s=predicted_s, **more
    )


def running(name, cpus=1, until=50.0, node="a", gpu_share=0.0, gpus=()):
    demand = Demand(cpus=cpus, gpus=gpu_share)
    return Running(trial_id=name, node_id=node, demand=demand, gpus=gpus, predicted_end=until)


def decide(*trials, nodes=(NODE,), held=(), now=0.0):
    return schedule(Snapshot(nodes=nodes, running=held, waiting=trials), now)


def started(decided: Schedule):
    return [placement.trial_id for placement in decided.placements]


def test_longest_predicted_starts_first():
    decided = decide(
        waiting("short", predicted_s=1),
        waiting("long", predicted_s=9),
        waiting("middle", predicted_s=5),
    )

    assert started(decided) == ["long", "middle", "short"]


def test_trials_with_a_checkpoint_start_before_longer_fresh_ones():
    decided = decide(
        waiting("fresh", predicted_s=9),
        waiting("nearly done", predicted_s=1, begun=True),
        waiting("begun", predicted_s=5, begun=True),
    )

    assert started(decided) == ["begun", "nearly done", "fresh"]


def test_behind_the_reserved_one_what_ends_in_time_is_found_among_begun_and_fresh_ones():
    decided = decide(
        waiting("wide", cpus=4),
        waiting("fresh, slow", predicted_s=90),
        waiting("fresh, quick", predicted_s=40),
        waiting("begun, slow", predicted_s=80, begun=True),
        waiting("begun, slower", predicted_s=85, begun=True),
        waiting("begun, quick", predicted_s=30, begun=True),
        held=[running("r", cpus=2, until=50)],
    )

    assert started(decided) == ["begun, quick", "fresh, quick"]


def test_a_larger_fresh_trial_stays_next_in_line():
    decided = decide(waiting("begun", begun=True), waiting("wide", cpus=4))

    assert started(decided) == ["wide"]


def test_of_equal_demands_of_two_sweeps_the_longest_is_next_in_line():
    decided = decide(
        waiting("short", cpus=4, predicted_s=1, sweep="a"),
        waiting("long", cpus=4, predicted_s=9, sweep="b"),
        held=[running("r", cpus=3, until=50)],
    )

    assert "next in line" in decided.waits["long"]
    assert "next in line" not in decided.waits["short"]


def test_largest_demand_goes_before_longer_ones():
    decided = decide(waiting("long", predicted_s=900), waiting("wide", cpus=4, predicted_s=1))

    assert started(decided) == ["wide"]
    assert decided.waits["long"] == "needs 1 core; 0 of 4 cores free"


def test_small_trial_that_would_delay_the_reserved_one_waits_and_says_for_whom():
    decided = decide(
        waiting("wide", cpus=4),
        waiting("slow", predicted_s=60),
        held=[running("r", cpus=3, until=50)],
    )

    assert started(decided) == []
    assert decided.waits["slow"] == (
        "needs 1 core, which is free but reserved for wide (needs 4 cores, starts in about 50 s)"
    )
    assert decided.waits["wide"] == (
        "needs 4 cores; 1 of 4 cores free; next in line, starts in about 50 s"
    )


def test_small_trial_that_ends_before_the_reserved_start_is_let_in():
    decided = decide(
        waiting("wide", cpus=4),
        waiting("quick", predicted_s=40),
        held=[running("r", cpus=3, until=50)],
    )

    assert started(decided) == ["quick"]


def test_small_trial_beside_the_reserved_one_is_let_in_however_long():
    decided = decide(
        waiting("wide", cpus=3),
        waiting("slow", predicted_s=9000),
        held=[running("r", cpus=2, until=50)],
    )

    assert started(decided) == ["slow"]


def test_nothing_gets_in_front_when_the_running_trial_is_overdue():
    decided = decide(
        waiting("wide", cpus=4),
        waiting("quick", predicted_s=0),
        held=[running("r", cpus=3, until=50)],
        now=60.0,
    )

    assert started(decided) == []


def test_another_node_is_free_for_trials_behind_the_reservation():
    other = Node(node_id="b", host="b", cpus=2)

    decided = decide(
        waiting("wide", cpus=4),
        waiting("slow", predicted_s=900),
        nodes=(NODE, other),
        held=[running("r", cpus=3)],
    )

    assert [(p.trial_id, p.node_id) for p in decided.placements] == [("slow", "b")]


def test_fractions_share_a_gpu_until_it_is_full():
    trials = [waiting(f"t{i}", gpus=0.4) for i in range(5)]

    decided = decide(*trials, nodes=(GPU_NODE,))

    assert [p.gpus for p in decided.placements] == [("0",), ("0",), ("1",), ("1",)]
    assert decided.waits["t4"] == (
        "needs 0.4 GPU and 1 core; at most 0.2 of a GPU free, 12 of 16 cores free"
    )


def test_three_thirds_fill_one_gpu_exactly():
    one = Node(node_id="g", host="g", cpus=16, gpus=("0",))

    decided = decide(*[waiting(f"t{i}", gpus=0.3333) for i in range(3)], nodes=(one,))

    assert len(decided.placements) == 3


def test_whole_gpu_needs_one_that_nobody_shares():
    decided = decide(
        waiting("whole", gpus=1.0),
        waiting("pair", gpus=2.0),
        nodes=(GPU_NODE,),
        held=[running("r", node="g", gpu_share=0.25, gpus=("0",), until=5)],
    )

    assert started(decided) == []
    assert decided.waits["pair"].startswith(
        "needs 2 GPUs and 1 core; 1 of 2 GPUs free, 15 of 16 cores free; next in line"
    )
    assert "reserved for pair" in decided.waits["whole"]


def test_impossible_demand_is_named_and_holds_nobody_up():
    decided = decide(waiting("huge", cpus=64), waiting("small"))

    assert started(decided) == ["small"]
    assert decided.impossible == {"huge"}
    assert decided.waits["huge"] == (
        "needs 64 cores on one node; the largest has 0 GPUs and 4 cores: lower resources.cpus, ranks or gpus, or add a node"
    )


def test_trial_whose_time_has_not_come_says_when_and_why():
    decided = decide(waiting("again", not_before=8.0, delay_reason="retry after killed"), now=2.0)

    assert started(decided) == []
    assert decided.waits["again"] == "starts again in 6 s: retry after killed"


def test_empty_cluster_has_a_sentence():
    assert decide(waiting("t"), nodes=()).waits["t"] == (
        "needs 1 core; the cluster has no node: if it had one, its Ray ended; submit again"
    )
