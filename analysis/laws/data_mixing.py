"""Loss against the mixture of training data, L = c + exp(sum of t_j r_j).

    L = c + k·exp(t_1 r_1 + ... + t_M r_M),  r_j the share of domain j

Source: Ye et al. 2024 (data mixing laws), equation 7. Shares add up to one, so k could be moved
into every t: it is one here. At a fixed size and number of tokens; losses of several validation
sets have a fit each. Inputs are the tokens (or weights) of each domain, in any unit.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import Law, LawProblem, Parameter

Array = NDArray[np.float64]

MOST_T = 10.0
"""Largest |t|: e^10 nats are more than any loss."""

_N_STARTS = 25


class DataMixing(Law):
    """Internal parameters: ln c, and t of each domain as it is."""

    name = "data_mixing"
    source = "Ye et al. 2024, equation 7"

    def __init__(self, domains: tuple[str, ...] = ("web", "code", "books")) -> None:
        """Name the columns that hold the tokens of each domain."""
        self.inputs = self.may_be_zero = tuple(domains)
        self.equation = f"L = c + exp({' + '.join(f't_{d}·r_{d}' for d in domains)}), r the shares"
        self.parameters = (
            Parameter("c", amplitude=True, at_lower="these runs show no floor"),
            *(
                Parameter(
                    f"t_{domain}",
                    lower=-MOST_T,
                    upper=MOST_T,
                    start=(-2.0, 2.0),
                    at_lower="all that mixtures change vanishes with this domain",
                )
                for domain in domains
            ),
        )
        slopes = np.linspace(-0.5, 1.0, len(domains)).tolist()
        self.example = {"c": 2.0} | {
            f"t_{domain}": slope for domain, slope in zip(domains, slopes, strict=True)
        }

    def features(self, inputs: Mapping[str, Array]) -> Array:
        """Return the share of each domain (M, n).

        Raises:
            ValueError: If a mixture has no tokens at all.
        """
        tokens = np.stack([inputs[name] for name in self.inputs])
        total = tokens.sum(axis=0)
        if not total.all():
            row = int(np.flatnonzero(total == 0)[0])
            raise ValueError(
                f"{', '.join(self.inputs)}, row {row}: got 0 of every domain; a mixture needs one"
            )
        return np.asarray(tokens / total)

    def centre(self, features: Array) -> Array:
        """Return zeros: without k nothing takes up a shift."""
        return np.zeros(len(features))

    def size(self, inputs: Mapping[str, Array]) -> Array:
        """Return how far each mixture is from the mean one: the farthest are held out."""
        shares = self.features(inputs)
        return np.asarray(np.linalg.norm(shares - shares.mean(axis=1, keepdims=True), axis=0))

    def log_values(self, features: Array, theta: Array) -> Array:
        """Return the log-sum-exp of c and the mixture's term."""
        return np.asarray(np.logaddexp(theta[:, :1], theta[:, 1:] @ features))

    def log_jacobian(self, features: Array, theta: Array) -> Array:
        """Return derivatives by ln c and every t."""
        exponent = theta[:, 1:] @ features
        total = np.logaddexp(theta[:, :1], exponent)
        mixed = np.exp(exponent - total)[:, None, :] * features
        return np.concatenate([np.exp(theta[:, :1] - total)[:, None, :], mixed], axis=1)

    def uncentre(self, theta: Array, centre: Array) -> Array:
        """Return theta: features are not shifted."""
        return theta.copy()

    def starts(self, problem: LawProblem) -> Array:
        """Return floors up to the lowest loss, each with its best t, linear in ln(L - c)."""
        lowest = float(np.exp(problem.log_y.min()))
        floors = lowest * (1 - np.geomspace(1e-3, 0.999, _N_STARTS))
        logs = np.log(np.exp(problem.log_y) - floors[:, None])
        slopes = np.linalg.lstsq(problem.features.T, logs.T, rcond=None)[0].T
        return np.column_stack([np.log(floors), slopes])


DATA_MIXING = DataMixing()
