import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.schedule import evaluation_steps, learning_rate
from workloads.train_config import TrainConfig

fractions = st.floats(0, 1)


def config(steps: int, **changes: object) -> TrainConfig:
    return TrainConfig(
        **{"tokens": 8 * steps, "batch_tokens": 8, "seq_len": 8, "lr": 0.5, **changes}
    )


@given(
    steps=st.integers(1, 300),
    schedule=st.sampled_from(["cosine", "wsd", "constant"]),
    warmup=fractions,
    decay=fractions,
    final=fractions,
)
def test_the_rate_rises_once_and_falls_once_within_zero_and_the_peak(
    steps, schedule, warmup, decay, final
):
    train = config(
        steps,
        schedule=schedule,
        warmup_fraction=warmup,
        decay_fraction=decay,
        final_lr_fraction=final,
    )

    rates = [learning_rate(step, train) for step in range(1, steps + 1)]

    assert all(0 <= rate <= train.lr * (1 + 1e-12) for rate in rates)
    signs = [b > a for a, b in itertools.pairwise(rates) if abs(b - a) > 1e-12]
    assert signs == sorted(signs, reverse=True), "a rise after a fall"


@given(
    steps=st.integers(2, 300), warmup=st.floats(0, 0.5), final=fractions, decay=st.floats(0.02, 0.4)
)
def test_decaying_schedules_end_at_the_final_share(steps, warmup, final, decay):
    for schedule in ("cosine", "wsd"):
        train = config(
            steps,
            schedule=schedule,
            warmup_fraction=warmup,
            final_lr_fraction=final,
            decay_fraction=decay,
        )
        expected = final if schedule == "cosine" or round(decay * steps) else 1.0
        assert learning_rate(steps, train) == pytest.approx(train.lr * expected)


def test_warmup_is_a_straight_line_from_zero_that_reaches_the_peak():
    train = config(100, warmup_fraction=0.1)

    assert [learning_rate(step, train) for step in range(1, 11)] == pytest.approx(
        [0.05 * step for step in range(1, 11)]
    )


def test_cosine_is_halfway_in_the_middle():
    train = config(100, warmup_fraction=0.0, final_lr_fraction=0.1)

    assert learning_rate(50, train) == pytest.approx(0.5 * (1 + 0.1) / 2)


def test_wsd_is_flat_and_then_a_straight_line():
    train = config(
        10, schedule="wsd", warmup_fraction=0.0, decay_fraction=0.4, final_lr_fraction=0.0
    )

    rates = [learning_rate(step, train) / train.lr for step in range(1, 11)]

    assert rates == pytest.approx([1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0])


@pytest.mark.parametrize("step", [0, 11])
def test_steps_outside_the_run_are_refused(step):
    with pytest.raises(ValueError, match=r"step must lie in 1\.\.10, got"):
        learning_rate(step, config(10))


@given(steps=st.integers(1, 10_000), evaluations=st.integers(1, 50))
def test_evaluations_are_evenly_spaced_and_the_last_is_at_the_end(steps, evaluations):
    at = sorted(evaluation_steps(steps, evaluations))

    assert at[-1] == steps
    assert at[0] >= 1
    assert len(at) == min(steps, evaluations)
    gaps = [b - a for a, b in itertools.pairwise([0, *at])]
    assert max(gaps) - min(gaps) <= 1
