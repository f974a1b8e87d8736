"""Loss when tokens are repeated, L = E + A/N'^alpha + B/D'^beta.

    D' = U·(1 + R_D·(1 - exp(-r_D / R_D))),  r_D = D/U - 1

U is the number of unique tokens, and r_D how often they are repeated: a token's R_D-th repetition
is worth 1/e of a new token. N' is the same of the size, with U_N = min(N, size for which U would be
compute-optimal) in place of U, and R_N. Source: Muennighoff et al. 2023, equation 5 and appendix A.
With tokens that are never repeated, and sizes that are not too large for them, it is Chinchilla's
law.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import Law, LawProblem, Parameter, spread_over
from analysis.laws.sum_of_powers import log_amplitudes

Array = NDArray[np.float64]

_N_STARTS = 96


class DataConstrained(Law):
    """Internal parameters: ln A, ln B and ln E at the centre, alpha, beta, ln R_D, ln R_N."""

    name = "data_constrained"
    equation = "L = E + A/N'^alpha + B/D'^beta, D' = U·(1 + R_D·(1 - e^(-(D/U - 1)/R_D)))"
    source = "Muennighoff et al. 2023, equation 5"
    inputs = ("params", "tokens", "unique_tokens")
    parameters = (
        Parameter("A", amplitude=True, at_lower="the loss does not fall with parameters"),
        Parameter("B", amplitude=True, at_lower="the loss does not fall with tokens"),
        Parameter("E", amplitude=True, at_lower="these runs show no floor"),
        Parameter("alpha", lower=1e-3, at_lower="the loss does not fall with parameters"),
        Parameter("beta", lower=1e-3, at_lower="the loss does not fall with tokens"),
        Parameter(
            "R_D",
            lower=float(np.log(0.05)),
            upper=float(np.log(1e4)),
            log=True,
            start=(0.5, 4.0),
            at_lower="repeated tokens are worth nothing",
            at_upper="repeated tokens are worth as much as new ones",
        ),
        Parameter(
            "R_N",
            lower=float(np.log(0.05)),
            upper=float(np.log(1e4)),
            log=True,
            start=(0.0, 4.0),
            at_lower="parameters beyond the optimum of the unique tokens are worth nothing",
            at_upper="parameters beyond the optimum of the unique tokens lose nothing",
        ),
    )
    example = MappingProxyType(
        {"A": 521.0, "B": 1488.0, "E": 1.87, "alpha": 0.353, "beta": 0.353}
        | {"R_D": 15.39, "R_N": 5.31}
    )

    def features(self, inputs: Mapping[str, Array]) -> Array:
        """Return ln N, ln D and ln U; there are no more unique tokens than tokens."""
        tokens = inputs["tokens"]
        unique = np.minimum(inputs["unique_tokens"], tokens)
        return np.stack([np.log(inputs["params"]), np.log(tokens), np.log(unique)])

    def centre(self, features: Array) -> Array:
        """Return means; tokens and unique tokens move together."""
        return np.asarray([features[0].mean(), features[1].mean(), features[1].mean()])

    def log_values(self, features: Array, theta: Array) -> Array:
        """Return the log-sum-exp of three terms."""
        a, b, e = self._terms(features, theta, *self._worth(features, theta)[:2])
        return np.asarray(np.logaddexp(np.logaddexp(a, b), e))

    def log_jacobian(self, features: Array, theta: Array) -> Array:
        """Return derivatives by all seven."""
        n, d, by_w, by_log_rd, by_log_rn, optimum = self._worth(features, theta)
        logs = self._terms(features, theta, n, d)
        total = np.logaddexp(np.logaddexp(logs[0], logs[1]), logs[2])
        a, b, e = (np.exp(log - total) for log in logs)
        alpha, beta = theta[:, 3, None], theta[:, 4, None]
        # w = ln N - ln N_opt where that is positive, and ln N' depends on theta through it.
        by_optimum = a * -alpha * -by_w
        columns = [
            a + by_optimum / alpha,
            b - by_optimum / alpha,
            e,
            -a * n + by_optimum * (1 / alpha - optimum) / alpha,
            -b * d + by_optimum * (features[2] - 1 / beta) / alpha,
            -b * beta * by_log_rd,
            -a * alpha * by_log_rn,
        ]
        return np.stack(columns, axis=1)

    def uncentre(self, theta: Array, centre: Array) -> Array:
        """Move A and B to ln N = 0 and ln D = 0."""
        moved = theta.copy()
        moved[:, 0] += theta[:, 3] * centre[0]
        moved[:, 1] += theta[:, 4] * centre[1]
        return moved

    def starts(self, problem: LawProblem) -> Array:
        """Return points spread over exponents and half-lives, each with its best A, B and E."""
        theta = np.column_stack(
            [np.zeros((_N_STARTS, 3)), spread_over(self.parameters[3:], _N_STARTS)]
        )
        tokens = self._worth(problem.features, theta)[1]
        params = np.broadcast_to(problem.features[0], tokens.shape)
        terms = self._terms(problem.features, theta, params, tokens)
        columns = np.exp(np.stack([np.broadcast_to(t, tokens.shape) for t in terms], axis=1))
        theta[:, :3] = log_amplitudes(columns / np.exp(problem.log_y))
        return theta

    def _terms(
        self, features: Array, theta: Array, params: Array, tokens: Array
    ) -> tuple[Array, Array, Array]:
        """Return the logs of the terms, of sizes by what they are worth (B, n)."""
        log_a, log_b, log_e, alpha, beta = (theta[:, i, None] for i in range(5))
        return log_a - alpha * params, log_b - beta * tokens, log_e + 0.0 * features[1]

    def _worth(
        self, features: Array, theta: Array
    ) -> tuple[Array, Array, Array, Array, Array, Array]:
        """Return ln N', ln D', d ln N' / d w, both by the logs of R_D and R_N, and ln N_opt."""
        log_n, log_d, log_u = features
        log_a, log_b, _, alpha, beta, log_rd, log_rn = (theta[:, i, None] for i in range(7))
        # alpha A / N^alpha = beta B / U^beta where N and U are in balance.
        optimum = (log_a + np.log(alpha) - log_b - np.log(beta) + beta * log_u) / alpha
        w = np.clip(log_n - optimum, 0.0, 200.0)
        params, by_w, by_log_rn = _diminished(w, np.exp(log_rn))
        tokens, _, by_log_rd = _diminished(np.maximum(log_d - log_u, 0.0), np.exp(log_rd))
        beyond = w > 0
        return (
            log_n - w + params,
            log_u + tokens,
            np.where(beyond, by_w - 1, 0.0),
            by_log_rd,
            by_log_rn,
            optimum,
        )


def _diminished(w: Array, half: Array) -> tuple[Array, Array, Array]:
    """Return ln(1 + R (1 - e^(-r / R))) of r = e^w - 1, and its derivatives by w and ln R."""
    with np.errstate(over="ignore"):
        r = np.expm1(w)
        left = np.exp(-r / half)
    worth = 1 + half * (1 - left)
    by_log_half = (half * (1 - left) - np.where(left > 0, r * left, 0.0)) / worth
    return np.log(worth), np.where(left > 0, left * (r + 1), 0.0) / worth, by_log_half


DATA_CONSTRAINED = DataConstrained()
