import numpy as np

from analysis.laws.kaplan import KAPLAN


def test_the_curve_is_the_printed_equation():
    N, D = np.asarray([1e6, 1e8, 1e9]), np.asarray([1e9, 1e8, 3e10])
    p = KAPLAN.example

    found = KAPLAN.evaluate({"params": N, "tokens": D}, np.asarray(list(p.values())))

    ratio = p["alpha_N"] / p["alpha_D"]
    np.testing.assert_allclose(
        found, ((p["N_c"] / N) ** ratio + p["D_c"] / D) ** p["alpha_D"], rtol=1e-9
    )
