"""Learning-rate schedules and evaluation steps, as functions of the step.

Steps are counted from 1.
"""

import math

from workloads.training.config import TrainConfig


def learning_rate(step: int, config: TrainConfig) -> float:
    """Return the learning rate of optimizer step `step` (1..config.steps).

    Shares are those of `schedule_steps`, of which a run with `stop_at_tokens` takes the first.
    Warm-up rises linearly and reaches the peak at its last step. After it, with t the share of the
    remaining steps that is done and f = final_lr_fraction:

        cosine    lr * (f + (1 - f) * (1 + cos(pi t)) / 2)         Loshchilov & Hutter 2017
        linear    lr * (f + (1 - f) * (1 - t))
        wsd       lr, then linearly down to f * lr over the last decay_fraction of all steps
        constant  lr

    wsd is the schedule of Hu et al. 2024. Where warm-up and its decay overlap, the smaller of the
    two holds.

    Raises:
        ValueError: If step lies outside 1..config.steps.
    """
    _check(step, config)
    warmup_steps = round(config.warmup_fraction * config.schedule_steps)
    rise = step / warmup_steps if step < warmup_steps else 1.0
    return config.lr * min(rise, _fall(step, config, warmup_steps=warmup_steps))


def value_lr_ratio(step: int, config: TrainConfig) -> float:
    """Return the learning rate of memory values over that of the rest at optimizer step `step`.

    With c = value_lr_ratio, f = value_lr_final_ratio and rho = value_lr_decay_fraction (1 if
    absent):

        f + (c - f) * max(0, 1 - step / (rho * schedule_steps))

    Without f it is c throughout. With f = 1 this is the schedule of UltraMem (Huang et al. 2024,
    arXiv 2411.12364, and its released code). It multiplies `learning_rate`, warm-up included.

    Raises:
        ValueError: If step lies outside 1..config.steps.
    """
    _check(step, config)
    start, final = config.value_lr_ratio, config.value_lr_final_ratio
    if final is None:
        return start
    fraction = config.value_lr_decay_fraction or 1.0
    return final + (start - final) * max(0.0, 1.0 - step / (fraction * config.schedule_steps))


def _check(step: int, config: TrainConfig) -> None:
    if not 1 <= step <= config.steps:
        raise ValueError(f"step must lie in 1..{config.steps}, got {step}")


def _fall(step: int, config: TrainConfig, *, warmup_steps: int) -> float:
    final = config.final_lr_fraction
    if config.schedule in ("cosine", "linear"):
        if step <= warmup_steps:
            return 1.0
        done = (step - warmup_steps) / (config.schedule_steps - warmup_steps)
        if config.schedule == "linear":
            return final + (1.0 - final) * (1.0 - done)
        return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * done))
    if config.schedule == "wsd":
        decay_steps = round(config.decay_fraction * config.schedule_steps)
        left = config.schedule_steps - step
        return 1.0 if left >= decay_steps else final + (1.0 - final) * left / decay_steps
    return 1.0


def evaluation_steps(steps: int, evaluations: int) -> frozenset[int]:
    """Return the steps after which to evaluate: evenly spaced, the last one is `steps`.

    Fewer than `evaluations` when the run has fewer steps.
    """
    return frozenset(-(-i * steps // evaluations) for i in range(1, evaluations + 1))
