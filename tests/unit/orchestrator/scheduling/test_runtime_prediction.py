from dataclasses import replace

import pytest

from orchestrator.records.trial_spec import TrialSpec
from orchestrator.scheduling.demand import Demand, Node
from orchestrator.scheduling.runtime_prediction import (
    RuntimeCorrections,
    RuntimePredictor,
    time_left_s,
)


def test_without_observations_nothing_is_corrected():
    assert RuntimeCorrections().ratio("dense/2^20") == 1.0


def test_own_architecture_and_size_come_before_architecture_before_all():
    corrections = RuntimeCorrections()
    corrections.observe("dense/2^20", 2.0)
    corrections.observe("dense/2^24", 4.0)
    corrections.observe("moe/2^20", 8.0)

    assert corrections.ratio("dense/2^20") == 2.0
    assert corrections.ratio("dense/2^30") == 3.0
    assert corrections.ratio("peer/2^20") == 4.0
    assert corrections.ratio("moe") == 8.0


def test_one_odd_trial_does_not_move_the_median():
    corrections = RuntimeCorrections()
    for ratio in (1.1, 1.2, 90.0):
        corrections.observe("dense/2^20", ratio)

    assert corrections.ratio("dense/2^20") == 1.2


def test_later_measurements_count_at_once():
    corrections = RuntimeCorrections()
    corrections.observe("dense", 2.0)
    assert corrections.ratio("dense/2^20") == 2.0
    corrections.observe("dense/2^20", 5.0)

    assert corrections.ratio("dense/2^20") == 5.0


SPEC = TrialSpec(
    sweep="s",
    data={"source": "x"},
    model={"architecture": "dense"},
    train={"tokens": 1000, "batch_tokens": 10, "seq_len": 10},
    seed=0,
)
NODES = (Node(node_id="a", host="a", cpus=2), Node(node_id="b", host="b", cpus=2, gpus=("0",)))


def test_prediction_shrinks_with_what_is_done():
    predictor = RuntimePredictor({SPEC.trial_id: 80.0})

    assert predictor.seconds(SPEC) == 80.0
    assert predictor.seconds(SPEC, done=0.75) == 20.0
    assert predictor.seconds(SPEC, done=1.5) == 0.0


def test_prediction_is_corrected_by_the_median_ratio():
    predictor = RuntimePredictor({SPEC.trial_id: 10.0})
    for seconds in (20.0, 30.0, 900.0):
        predictor.observe(SPEC, seconds)

    assert predictor.seconds(SPEC) == 30.0


def test_trials_that_run_count_for_the_display_and_only_while_they_run():
    predictor = RuntimePredictor({SPEC.trial_id: 10.0})
    predictor.observe_running([(SPEC, 40.0)])
    assert predictor.seconds_now(SPEC) == 40.0
    assert predictor.seconds(SPEC) == 10.0

    predictor.observe(SPEC, 20.0)
    assert predictor.seconds_now(SPEC) == 30.0
    assert predictor.seconds(SPEC) == 20.0

    predictor.observe_running([])
    assert predictor.seconds_now(SPEC) == 20.0


def test_correction_does_not_build_on_itself():
    predictor = RuntimePredictor({SPEC.trial_id: 10.0})
    for _ in range(5):
        predictor.observe(SPEC, 20.0)

    assert predictor.seconds(SPEC) == 20.0


def test_without_a_prediction_more_flops_take_longer():
    few, many = (replace(SPEC, accounting={"training_flops": flops}) for flops in (1e9, 1e12))

    assert 0 < RuntimePredictor({}).seconds(few) < RuntimePredictor({}).seconds(many)
    assert RuntimePredictor({}).seconds(SPEC) > 0


@pytest.mark.parametrize(
    ("work", "seconds"),
    [
        ([], 0.0),
        ([(10.0, 1), (10.0, 1)], 10.0),
        ([(10.0, 2)] * 4, 20.0),
        ([(100.0, 1), (10.0, 1)], 100.0),
    ],
)
def test_time_left_is_the_longest_or_the_spread(work, seconds):
    assert time_left_s([(s, Demand(cpus=cpus)) for s, cpus in work], NODES) == seconds


def test_gpus_can_be_what_is_short():
    assert time_left_s([(10.0, Demand(cpus=1, gpus=0.5))] * 6, NODES) == 30.0


def test_no_nodes_no_telling():
    assert time_left_s([], ()) is None
