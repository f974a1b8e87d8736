import math

import pytest

from workloads.training.metrics.divergence import MARGIN_NATS, PATIENCE_STEPS, DivergenceDetector
from workloads.training.metrics.reporter import Diverged


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["loss", "grad_norm"])
def test_a_number_that_is_none_ends_the_run_and_is_named(name, value):
    numbers = {"loss": 1.0, "grad_norm": 1.0, name: value}

    watch = DivergenceDetector(untrained_loss=2.0)
    with pytest.raises(Diverged, match=rf"step 7: {name} is {value} at learning rate 0\.003"):
        watch.observe(7, lr=3e-3, **numbers)


def test_an_untrained_model_without_numbers_is_not_blamed_on_the_rate():
    with pytest.raises(Diverged, match=r"step 1: loss is nan before any update; .*model's code"):
        DivergenceDetector().observe(1, lr=3e-3, loss=math.nan)


def test_a_loss_that_stays_above_the_untrained_models_ends_the_run():
    watch = DivergenceDetector()
    watch.observe(1, lr=1.0, loss=2.0)
    exploded = 2.0 + MARGIN_NATS + 0.01
    for step in range(2, PATIENCE_STEPS + 1):
        watch.observe(step, lr=1.0, loss=exploded)

    with pytest.raises(
        Diverged, match=rf"step {PATIENCE_STEPS + 1}: loss is 3\.010.* untrained model's 2\.000"
    ):
        watch.observe(PATIENCE_STEPS + 1, lr=1.0, loss=exploded)


def test_spikes_and_bad_but_level_losses_do_not():
    watch = DivergenceDetector()
    watch.observe(1, lr=1.0, loss=2.0)
    for step in range(2, 4 * PATIENCE_STEPS):
        recovered = step % PATIENCE_STEPS == 0
        watch.observe(step, lr=1.0, loss=2.0 + MARGIN_NATS if recovered else 100.0)
    for step in range(4 * PATIENCE_STEPS, 6 * PATIENCE_STEPS):
        watch.observe(step, lr=1.0, loss=2.0 + MARGIN_NATS)

    assert watch.exploded_steps == 0
