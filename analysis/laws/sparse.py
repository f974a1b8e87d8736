"""Loss of models with memory or experts, L(N_active, N_memory, D).

No law for memory tables has been published. These three candidate forms carry over what is known of
experts. At N_memory = 0 each is L = E + A/N^alpha + B/D^beta. Dense runs therefore belong into the
same fit, and share E, B, beta and alpha. Which form fits is a matter of prediction, not of the fit:
`analysis/fitting/model_selection.py` compares them by hold-out.

    effective           memory adds effective parameters: A / (N + kappa M^rho)^alpha
    effective_growing   the same, more with more data: kappa (D / 10^9)^tau
    interaction         sparsity rescales the parameter term: A N^-(alpha + gamma ln S) S^-delta
                        (Clark et al. 2022, equation 1)
    joint               and the data term as well: B D^-(beta + zeta ln S) S^-omega
                        (Ludziejewski et al. 2025, joint law)

with S = 1 + M/N, and "sparse_joint_shared" the joint form with one rate for both interactions.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import Law, LawProblem, Parameter, spread_over
from analysis.laws.sum_of_powers import SumOfPowers, Term, log_amplitudes, minus_log

Array = NDArray[np.float64]
INPUTS = ("n_active", "n_memory", "tokens")

TOKENS_REFERENCE = 1e9
"""Tokens at which kappa of the growing form is stated."""


def _log_sparsity(inputs: Mapping[str, Array]) -> Array:
    return np.asarray(np.log1p(inputs["n_memory"] / inputs["n_active"]))


def _minus_log_sparsity(inputs: Mapping[str, Array]) -> Array:
    return -_log_sparsity(inputs)


def _params_and_sparsity(inputs: Mapping[str, Array]) -> Array:
    return np.asarray(-np.log(inputs["n_active"]) * _log_sparsity(inputs))


def _tokens_and_sparsity(inputs: Mapping[str, Array]) -> Array:
    return np.asarray(-np.log(inputs["tokens"]) * _log_sparsity(inputs))


_DENSE = {"A": 482.01, "B": 2085.43, "E": 1.8172, "alpha": 0.3478, "beta": 0.3658}
"""Besiroglu et al. 2024; what memory adds in the examples below is made up."""

_ALPHA = Parameter("alpha", at_lower="the loss does not fall with active parameters")
_BETA = Parameter("beta", at_lower="the loss does not fall with tokens")


_SPARSE_PARAMS = Term(
    "A",
    {
        "alpha": minus_log("n_active"),
        "delta": _minus_log_sparsity,
        "gamma": _params_and_sparsity,
    },
)
"""A N^-(alpha + gamma ln S) S^-delta."""


def _free(name: str, size: float = 3.0) -> Parameter:
    """A correction that may have either sign."""
    return Parameter(name, lower=-size, upper=size, start=(-0.1 * size, 0.1 * size))


INTERACTION = SumOfPowers(
    name="sparse_interaction",
    equation="L = E + A·N^-(alpha + gamma·ln S)·S^-delta + B/D^beta, S = 1 + M/N",
    source="Clark et al. 2022, equation 1, above a floor and with tokens",
    inputs=INPUTS,
    may_be_zero=("n_memory",),
    terms=(
        _SPARSE_PARAMS,
        Term("B", {"beta": minus_log("tokens")}),
        Term("E"),
    ),
    exponents=(_ALPHA, _BETA, _free("delta", 6.0), _free("gamma", 0.5)),
    example=_DENSE | {"delta": 0.4, "gamma": -0.012},
)

JOINT = SumOfPowers(
    name="sparse_joint",
    equation="L = E + A·N^-(alpha + gamma·ln S)·S^-delta + B·D^-(beta + zeta·ln S)·S^-omega, "
    "S = 1 + M/N",
    source="Ludziejewski et al. 2025, joint law",
    inputs=INPUTS,
    may_be_zero=("n_memory",),
    terms=(
        _SPARSE_PARAMS,
        Term(
            "B",
            {
                "beta": minus_log("tokens"),
                "omega": _minus_log_sparsity,
                "zeta": _tokens_and_sparsity,
            },
        ),
        Term("E"),
    ),
    exponents=(
        *(_ALPHA, _BETA, _free("delta", 6.0), _free("gamma", 0.5)),
        *(_free("omega", 6.0), _free("zeta", 0.5)),
    ),
    example=_DENSE | {"delta": 0.4, "gamma": -0.012, "omega": -0.3, "zeta": 0.012},
)

JOINT_SHARED = SumOfPowers(
    name="sparse_joint_shared",
    equation="L = E + A·N^-alpha·S^-delta + B·D^-beta·S^-omega, S = 1 + M/N",
    source="Ludziejewski et al. 2025, joint law, with exponents shared by dense and sparse "
    "(gamma = zeta = 0)",
    inputs=INPUTS,
    may_be_zero=("n_memory",),
    terms=(
        Term("A", {"alpha": minus_log("n_active"), "delta": _minus_log_sparsity}),
        Term("B", {"beta": minus_log("tokens"), "omega": _minus_log_sparsity}),
        Term("E"),
    ),
    exponents=(_ALPHA, _BETA, _free("delta", 2.0), _free("omega", 2.0)),
    example=_DENSE | {"delta": 0.15, "omega": 0.03},
)


class Effective(Law):
    """A / (N + kappa M^rho)^alpha: memory as effective parameters.

    Internal parameters: ln A, ln B (at the centre), ln E, alpha, beta, ln of kappa M^rho / N at the
    centre, rho (, tau). The feature rows are -ln N, -ln D, ln M (0 without memory) and whether
    there is memory.
    """

    inputs = INPUTS
    may_be_zero = ("n_memory",)

    def __init__(self, *, growing: bool) -> None:
        self._growing = growing
        self.name = "sparse_effective_growing" if growing else "sparse_effective"
        factor = "·(D/1e9)^tau" if growing else ""
        self.equation = f"L = E + A/(N + kappa{factor}·M^rho)^alpha + B/D^beta"
        self.source = (
            "memory as effective parameters, after the effective parameter count of "
            "Clark et al. 2022"
        )
        self.may_be_constant = (3,)
        self.example = _DENSE | {"kappa": 40.0, "rho": 0.75} | ({"tau": 0.3} if growing else {})
        none = "memory is worth no parameters in these runs"
        same = "more memory is worth no more than less"
        growth = (Parameter("tau", lower=-2.0, upper=2.0, start=(-0.3, 0.5)),)
        self.parameters = (
            Parameter("A", amplitude=True, at_lower="the loss does not fall with parameters"),
            Parameter("B", amplitude=True, at_lower="the loss does not fall with tokens"),
            Parameter("E", amplitude=True, at_lower="these runs show no floor"),
            _ALPHA,
            _BETA,
            Parameter(
                "kappa",
                lower=-np.inf,
                upper=np.inf,
                log=True,
                start=(-4.0, 2.0),
                at_lower=none,
                coupled_to=("tau",) if growing else (),
            ),
            Parameter("rho", upper=3.0, start=(0.1, 1.2), at_lower=same),
            *(growth if growing else ()),
        )

    def features(self, inputs: Mapping[str, Array]) -> Array:
        """Return -ln N, -ln D, ln M, and 1 where M > 0."""
        has = inputs["n_memory"] > 0
        memory = np.log(np.where(has, inputs["n_memory"], 1.0))
        return np.stack([-np.log(inputs["n_active"]), -np.log(inputs["tokens"]), memory, has])

    def centre(self, features: Array) -> Array:
        """Return means, that of ln M over the runs that have memory; the flag stays."""
        has = features[3] > 0
        memory = float(features[2][has].mean()) if has.any() else 0.0
        return np.asarray([features[0].mean(), features[1].mean(), memory, 0.0])

    def limits(self, features: Array, log_y: Array) -> tuple[Array, Array]:
        """At the centre, memory is worth e^-12 to e^9 times the parameters.

        kappa alone may be anything that amounts to this with some rho and tau.
        """
        lower, upper = super().limits(features, log_y)
        minus_n, minus_d, memory, _ = np.round(self.centre(features), 9)  # 0 where centred
        growth = 2.0 * abs(minus_d) if self._growing else 0.0
        lower[5] = -12.0 - minus_n - upper[6] * memory - growth
        upper[5] = 9.0 - minus_n + growth
        return lower, upper

    def log_values(self, features: Array, theta: Array) -> Array:
        """Return the log-sum-exp of three terms."""
        terms, _ = self._terms(features, theta)
        return np.asarray(np.logaddexp(np.logaddexp(terms[0], terms[1]), terms[2]))

    def log_jacobian(self, features: Array, theta: Array) -> Array:
        """Return derivatives by all parameters."""
        terms, (gain, share, minus_d, memory) = self._terms(features, theta)
        total = np.logaddexp(np.logaddexp(terms[0], terms[1]), terms[2])
        a, b, e = (np.exp(term - total) for term in terms)
        alpha = theta[:, 3, None]
        minus_n_effective = features[0] - gain
        by_kappa = -a * alpha * share
        columns = [a, b, e, a * minus_n_effective, b * minus_d, by_kappa, by_kappa * memory]
        if self._growing:
            columns.append(-by_kappa * minus_d)
        return np.stack(columns, axis=1)

    def uncentre(self, theta: Array, centre: Array) -> Array:
        """Move everything to feature zero; the ratio kappa M^rho / N becomes kappa."""
        moved = theta.copy()
        moved[:, 0] -= theta[:, 3] * centre[0]
        moved[:, 1] -= theta[:, 4] * centre[1]
        moved[:, 5] -= theta[:, 6] * centre[2] + centre[0]
        if self._growing:
            moved[:, 5] += theta[:, 7] * centre[1]
        return moved

    def internal(self, parameters: Array) -> Array:
        """As the base; kappa is stated at TOKENS_REFERENCE."""
        theta = super().internal(parameters)
        if self._growing:
            theta[..., 5] -= theta[..., 7] * np.log(TOKENS_REFERENCE)
        return theta

    def external(self, theta: Array) -> Array:
        """The reverse of `internal`."""
        if not self._growing:
            return super().external(theta)
        moved = theta.copy()
        moved[..., 5] += theta[..., 7] * np.log(TOKENS_REFERENCE)
        return super().external(moved)

    def starts(self, problem: LawProblem) -> Array:
        """Return points spread over exponents and kappa, each with its best A, B and E."""
        n = 96
        theta = np.column_stack([np.zeros((n, 3)), spread_over(self.parameters[3:], n)])
        terms, _ = self._terms(problem.features, theta)
        columns = np.exp(np.stack([np.broadcast_to(t, terms[0].shape) for t in terms], axis=1))
        theta[:, :3] = log_amplitudes(columns / np.exp(problem.log_y))
        return theta

    def _terms(
        self, features: Array, theta: Array
    ) -> tuple[tuple[Array, Array, Array], tuple[Array, Array, Array, Array]]:
        """Return the logs of the terms, and ln(1 + memory/N), memory's share, -ln D and ln M."""
        minus_n, minus_d, memory, has = features
        log_a, log_b, log_e, alpha, beta, log_kappa, rho = (theta[:, i, None] for i in range(7))
        ratio = log_kappa + rho * memory + minus_n
        if self._growing:
            ratio = ratio - theta[:, 7, None] * minus_d
        gain = np.where(has > 0, np.logaddexp(0.0, ratio), 0.0)
        share = np.where(has > 0, np.exp(ratio - np.logaddexp(0.0, ratio)), 0.0)
        logs = (log_a + alpha * (minus_n - gain), log_b + beta * minus_d, log_e + 0.0 * minus_d)
        return logs, (gain, share, minus_d, memory)


EFFECTIVE = Effective(growing=False)
EFFECTIVE_GROWING = Effective(growing=True)
