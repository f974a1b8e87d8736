"""Knowledge capacity: R bits per parameter until the data are exhausted.

    bits = ((R P)^-k + T^-k)^(-1/k)

P is the number of parameters, and T the bits that the data hold, known from their generator. R is
the capacity in bits per parameter that the plateau of bits/P shows, and k how sharply storing
stops. Small models are full (bits = R P), large ones know everything (bits = T). The two ends:
Allen-Zhu and Li 2024 (Physics of language models 3.3), theorem 3.2 and result 1 (R about 2 after
1,000 exposures, about 1 after 100). The smooth minimum between them is ours.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import Law, Parameter

Array = NDArray[np.float64]


class Capacity(Law):
    """Internal parameters: ln R, ln k."""

    name = "capacity"
    equation = "bits = ((R·P)^-k + T^-k)^(-1/k)"
    source = "Allen-Zhu and Li 2024, result 1; joined by a smooth minimum"
    inputs = ("params", "data_bits")
    parameters = (
        Parameter(
            "R",
            lower=-20.0,
            upper=20.0,
            log=True,
            start=(-3.0, 3.0),
            at_upper="all models know everything: make them smaller to see a capacity",
        ),
        Parameter(
            "k",
            lower=float(np.log(0.2)),
            upper=float(np.log(50.0)),
            log=True,
            start=(-1.0, 2.5),
            at_upper="a sharp corner: no model is partly full",
        ),
    )

    may_be_constant = (1,)
    example = MappingProxyType({"R": 2.0, "k": 3.0})

    def features(self, inputs: Mapping[str, Array]) -> Array:
        """Return ln P and ln T."""
        return np.stack([np.log(inputs["params"]), np.log(inputs["data_bits"])])

    def centre(self, features: Array) -> Array:
        """Return zeros: ln R is of the order of one as it is."""
        return np.zeros(2)

    def log_values(self, features: Array, theta: Array) -> Array:
        """Return ln bits."""
        full, everything, k = self._ends(features, theta)
        return np.asarray(-np.logaddexp(-k * full, -k * everything) / k)

    def log_jacobian(self, features: Array, theta: Array) -> Array:
        """Return derivatives by ln R and ln k."""
        full, everything, k = self._ends(features, theta)
        total = np.logaddexp(-k * full, -k * everything)
        by_full = np.exp(-k * full - total)
        by_log_k = total / k + by_full * full + (1 - by_full) * everything
        return np.stack([by_full, by_log_k], axis=1)

    def uncentre(self, theta: Array, centre: Array) -> Array:
        """Return theta: nothing is centred."""
        return theta.copy()

    def size(self, inputs: Mapping[str, Array]) -> Array:
        """Models by their parameters."""
        return np.asarray(np.log(inputs["params"]))

    def _ends(self, features: Array, theta: Array) -> tuple[Array, Array, Array]:
        full = theta[:, :1] + features[0]
        return full, np.broadcast_to(features[1], full.shape), np.exp(theta[:, 1:])


CAPACITY = Capacity()
