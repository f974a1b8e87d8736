"""Power law with an irreducible term against one size, y = E + A/x^alpha, fitted in relative error.

The same equation as `analysis/fitting/power_curve.py`, which fits it in the units of y by least squares; here it stands beside
the laws of several sizes, for Huber's loss of log errors and for comparison by hold-out.
Source: Hestness et al. 2017 (learning curves); Henighan et al. 2020, equation 1.1.
"""

from analysis.fitting.law import Parameter
from analysis.laws.sum_of_powers import SumOfPowers, Term, minus_log

POWER = SumOfPowers(
    name="power",
    equation="y = E + A/x^alpha",
    source="Henighan et al. 2020, equation 1.1",
    inputs=("x",),
    terms=(Term("A", {"alpha": minus_log("x")}), Term("E")),
    exponents=(Parameter("alpha", start=(0.02, 1.5), at_lower="the outcome does not fall with x"),),
    order=("A", "E", "alpha"),
    example={"A": 400.0, "E": 1.7, "alpha": 0.35},
    at_zero={"E": "these runs show no floor, do not extrapolate to one"},
)
