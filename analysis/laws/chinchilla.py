"""Loss against parameters and tokens, L = E + A/N^alpha + B/D^beta.

Source: Hoffmann et al. 2022, equation 2 and section 3.3; refitted by Besiroglu et al. 2024.
`tied` has one exponent for both (alpha = beta).
"""

from analysis.fitting.law import Parameter
from analysis.laws.sum_of_powers import SumOfPowers, Term, minus_log

_ZERO = {
    "E": "these runs show no floor, do not extrapolate to one",
    "A": "the loss does not fall with parameters",
    "B": "the loss does not fall with tokens",
}


def _terms(of_tokens: str) -> tuple[Term, ...]:
    return (
        Term("A", {"alpha": minus_log("params")}),
        Term("B", {of_tokens: minus_log("tokens")}),
        Term("E"),
    )


CHINCHILLA = SumOfPowers(
    name="chinchilla",
    equation="L = E + A/N^alpha + B/D^beta",
    source="Hoffmann et al. 2022, equation 2",
    inputs=("params", "tokens"),
    terms=_terms("beta"),
    exponents=(
        Parameter("alpha", at_lower="the loss does not fall with parameters"),
        Parameter("beta", at_lower="the loss does not fall with tokens"),
    ),
    example={"A": 482.01, "B": 2085.43, "E": 1.8172, "alpha": 0.3478, "beta": 0.3658},
    at_zero=_ZERO,
)

CHINCHILLA_TIED = SumOfPowers(
    name="chinchilla_tied",
    equation="L = E + A/N^alpha + B/D^alpha",
    source="Hoffmann et al. 2022, equation 2, with beta = alpha",
    inputs=("params", "tokens"),
    terms=_terms("alpha"),
    exponents=(Parameter("alpha", at_lower="the loss falls with neither size"),),
    example={"A": 561.56, "B": 1752.09, "E": 1.818048, "alpha": 0.357058},
    at_zero=_ZERO,
)


def compute_optimum(parameters: dict[str, float], compute: float) -> tuple[float, float]:
    """Return the parameters and tokens of lowest loss at a training budget C = 6 N D.

    N = G (C/6)^(beta/(alpha+beta)) with G = (alpha A / (beta B))^(1/(alpha+beta)). Hoffmann et al.
    2022, equation 4.

    Args:
        parameters: A, B, alpha, beta of the law.
        compute: FLOPs.
    """
    A, B, alpha, beta = (parameters[name] for name in ("A", "B", "alpha", "beta"))
    product = compute / 6
    G = (alpha * A / (beta * B)) ** (1 / (alpha + beta))
    params = G * product ** (beta / (alpha + beta))
    return params, product / params
