"""Synthetic runs of a law with known coefficients, for tests and demonstrations."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import Law

Array = NDArray[np.float64]

RANGES: Mapping[str, tuple[float, float]] = {
    "params": (2e7, 1e10),
    "tokens": (5e8, 3e11),
    "n_active": (2e7, 5e9),
    "n_memory": (1e7, 3e10),
    "experts": (1, 512),
    "granularity": (1, 32),
    "sparsity": (0, 0.98),
    "x": (1e17, 1e22),
    "data_bits": (1e6, 6e7),
    "unique_tokens": (3e8, 3e10),
    "vocabulary": (4e3, 1e5),
    "characters": (1e9, 1e11),
    **dict.fromkeys(("web", "code", "books"), (1e8, 1e11)),
    "power.x": (1e5, 1e9),
    "capacity.params": (1e5, 3e8),
}
"""Range that each input is drawn from, log-uniformly (of sparsity S, 1 - S is). A key `law.input`
holds for that law alone."""

SHARE_WITHOUT = 0.3
"""Share of runs in which an input that may be zero is zero."""


def make_inputs(law: Law, n_runs: int, *, seed: int = 0) -> dict[str, Array]:
    """Return the law's inputs, each (n_runs,), evenly spread (Latin hypercube)."""
    generator = np.random.default_rng(seed)
    inputs: dict[str, Array] = {}
    for name in law.inputs:
        low, high = RANGES.get(f"{law.name}.{name}", RANGES[name])
        place = (generator.permutation(n_runs) + generator.random(n_runs)) / n_runs
        if name == "sparsity":
            inputs[name] = 1 - (1 - high) ** place
        elif name == "experts":
            inputs[name] = 2.0 ** np.round(np.log2(low) + place * np.log2(high / low))
        else:
            inputs[name] = low * (high / low) ** place
        # Not all at once: where every input may be zero, the last one never is.
        kept = name == law.inputs[-1] and set(law.may_be_zero) == set(law.inputs)
        if name in law.may_be_zero and not kept:
            inputs[name][generator.random(n_runs) < SHARE_WITHOUT] = 0.0
    return inputs


def make_runs(
    law: Law,
    n_runs: int,
    *,
    noise: float,
    seed: int = 0,
    parameters: Mapping[str, float] | None = None,
    inputs_seed: int = 0,
) -> dict[str, Array]:
    """Return inputs and `loss` of synthetic runs.

    Args:
        law: The law that the runs follow.
        n_runs: How many runs.
        noise: Standard deviation of the errors of ln(loss).
        seed: Of the random errors.
        parameters: Coefficients; the law's example if None.
        inputs_seed: Of the random inputs.
    """
    inputs = make_inputs(law, n_runs, seed=inputs_seed)
    chosen = parameters or law.example
    truth = np.asarray([chosen[name] for name in law.parameter_names])
    errors = noise * np.random.default_rng(seed).standard_normal(n_runs)
    return inputs | {"loss": law.evaluate(inputs, truth) * np.exp(errors)}
