"""Fine-grained experts' loss, L = c + (g/G^gamma + a)/N^alpha + b/D^beta.

G is the granularity: how many times smaller an expert is than a dense feed-forward block, with as
many more experts. N counts all parameters without embeddings. Source: Krajewski et al. 2024,
equation 9.
"""

from analysis.fitting.law import Parameter
from analysis.laws.sum_of_powers import SumOfPowers, Term, minus_log

FINE_GRAINED = SumOfPowers(
    name="fine_grained",
    equation="L = c + (g/G^gamma + a)/N^alpha + b/D^beta",
    source="Krajewski et al. 2024, equation 9",
    inputs=("params", "tokens", "granularity"),
    terms=(
        Term("g", {"gamma": minus_log("granularity"), "alpha": minus_log("params")}),
        Term("a", {"alpha": minus_log("params")}),
        Term("b", {"beta": minus_log("tokens")}),
        Term("c"),
    ),
    exponents=(
        Parameter("alpha", at_lower="the loss does not fall with parameters"),
        Parameter("beta", at_lower="the loss does not fall with tokens"),
        Parameter("gamma", start=(0.1, 1.5), at_lower="granularity makes no difference"),
    ),
    order=("a", "alpha", "b", "beta", "g", "gamma", "c"),
    example={
        "a": 18.1,
        "alpha": 0.115,
        "b": 30.8,
        "beta": 0.147,
        "g": 2.1,
        "gamma": 0.58,
        "c": 0.47,
    },
    at_zero={"g": "granularity makes no difference"},
)
