"""How often two kinds of runs under one name are noticed, and how often one kind is called two.

    python benchmarks/two_kinds.py --tables 500

Made-up tables of Chinchilla's law with normal noise, fitted as anybody would (`fit_law`); of two
kinds, a random half of the configurations has a loss higher by a number of noise standard
deviations.
"""

import argparse

import numpy as np

from analysis.fitting.fit_law import fit_law
from analysis.laws.chinchilla import CHINCHILLA

NOISE = 0.005
"""Standard deviation of ln(loss)."""

TRUTH = np.asarray([482.0, 2085.0, 1.82, 0.348, 0.366])
DESIGNS = {
    "6 sizes x 3 lengths": (6, (5.0, 20.0, 80.0)),
    "8 sizes x 3 lengths": (8, (5.0, 20.0, 80.0)),
    "8 sizes x 5 lengths": (8, (5.0, 10.0, 20.0, 40.0, 80.0)),
}


def noticed(n_sizes: int, lengths: tuple[float, ...], offset: float, seed: int) -> bool:
    generator = np.random.default_rng(seed)
    params = np.repeat(np.geomspace(1e6, 1e8, n_sizes), len(lengths))
    tokens = params * np.tile(lengths, n_sizes)
    n = len(params)
    other = generator.permutation(n) < n // 2
    errors = NOISE * (generator.standard_normal(n) + offset * other)
    inputs = {"params": params, "tokens": tokens}
    loss = CHINCHILLA.evaluate(inputs, TRUTH) * np.exp(errors)
    fit = fit_law(CHINCHILLA, {**inputs, "loss": loss}, n_draws=0, hold_out=False)
    return "fall into two groups" in fit.sentence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=500, help="of one kind, for each design")
    parser.add_argument("--two", type=int, default=100, help="of two kinds, for each offset")
    arguments = parser.parse_args()
    for name, (n_sizes, lengths) in DESIGNS.items():
        for offset in (0.0, 10.0, 5.0, 3.0):
            n = arguments.two if offset else arguments.tables
            found = sum(noticed(n_sizes, lengths, offset, seed) for seed in range(n))
            print(f"{name}, offset {offset:g} standard deviations: {found} of {n}", flush=True)


if __name__ == "__main__":
    main()
