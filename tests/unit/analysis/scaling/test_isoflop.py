import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from analysis.fitting.objective import SQUARES
from analysis.fitting.result import FitStatus
from analysis.fitting.verdict import VerdictStatus
from analysis.laws.chinchilla import compute_optimum
from analysis.scaling.isoflop import fit_isoflop
from analysis.scaling.isoflop_minima import akima_minima, parabola_minima
from analysis.scaling.isoflop_quartic import quartic_minima, rejects_parabolas

EVEN = {"A": 500.0, "B": 500.0, "E": 1.8, "alpha": 0.35, "beta": 0.35}
UNEVEN = {"A": 60.0, "B": 3e4, "E": 1.8, "alpha": 0.25, "beta": 0.5}
BUDGETS = np.geomspace(1e18, 1e21, 5)


def sweep(parameters=EVEN, *, spread=2.0, centre=1.0, n=7, noise=0.0, seeds=1, seed=0):
    """Sizes a factor `spread` to each side of the optimum times `centre`, for every budget."""
    rows = []
    generator = np.random.default_rng(seed)
    for C in BUDGETS:
        best, _ = compute_optimum(parameters, C)
        for N in centre * best * np.geomspace(1 / spread, spread, n):
            D = C / 6 / N
            L = parameters["E"] + parameters["A"] / N ** parameters["alpha"] + parameters["B"] / D ** parameters["beta"]  # fmt: skip
            rows += [(N, D, C, L * np.exp(noise * generator.standard_normal())) for _ in range(seeds)]  # fmt: skip
    return dict(zip(("params", "tokens", "flops", "loss"), np.asarray(rows).T, strict=True))


@pytest.mark.parametrize("method", ["parabola", "quartic", "akima"])
def test_symmetric_budgets_give_the_true_optimum(method):
    fit = fit_isoflop(sweep(), method=method, n_draws=0, hold_out=False)

    for size in ("params", "tokens"):
        line = fit.lines[size]
        assert line.exponent == pytest.approx(0.5, abs=1e-3)
        for budget, C in zip(line.budgets, BUDGETS, strict=True):
            expected = compute_optimum(EVEN, C)[size == "tokens"]
            assert budget.optimum == pytest.approx(expected, rel=1e-3)
            assert budget.compute == pytest.approx(C)
    assert fit.exponents["params"][0] == pytest.approx(0.5, abs=1e-6)


def test_the_parabola_is_scipys_polynomial():
    table = sweep(noise=0.001)
    budget = (
        fit_isoflop(table, n_draws=0, hold_out=False, method="parabola").lines["params"].budgets[2]
    )

    expected = np.polynomial.polynomial.polyfit(np.log(budget.x), budget.y, 2)
    np.testing.assert_allclose(budget.coefficients, expected, rtol=1e-5)
    assert np.log(budget.optimum) == pytest.approx(-expected[1] / 2 / expected[2], rel=1e-6)


def test_akima_is_scipys_in_every_resample():
    from scipy.interpolate import Akima1DInterpolator

    generator = np.random.default_rng(3)
    u = np.sort(generator.normal(size=9))
    y = (u - 0.2) ** 2 + 0.2 * generator.standard_normal(9)
    weights = generator.integers(0, 3, (80, 9)).astype(float)

    places, lowest, _ = akima_minima(u, y, weights)

    for there, place, low in zip(weights > 0, places, lowest, strict=True):
        curve = Akima1DInterpolator(u[there], y[there])
        turns = curve.derivative().roots(extrapolate=False)
        at = np.concatenate([u[there][[0, -1]], turns[np.isfinite(turns)]])
        best = curve(at).argmin()
        assert low == pytest.approx(curve(at).min(), abs=1e-12)
        assert place == pytest.approx([-1e9, 1e9][best] if best < 2 else at[best], abs=1e-9)


def test_uncentred_budgets_bias_the_parabola_and_not_the_parametric_law():
    table = sweep(UNEVEN, spread=16, centre=3)
    fit = fit_isoflop(table, n_draws=0, hold_out=False, method="parabola")

    true = compute_optimum(UNEVEN, BUDGETS[2])[0]
    assert abs(np.log(fit.lines["params"].at(BUDGETS[2])[0] / true)) > 0.02
    assert fit.parametric_optimum(BUDGETS[2])[0] == pytest.approx(true, rel=1e-4)


def test_near_points_only_lessen_the_bias():
    table = sweep(UNEVEN, spread=16, n=21)
    true = compute_optimum(UNEVEN, BUDGETS[2])[0]

    def error(within):
        fit = fit_isoflop(table, n_draws=0, hold_out=False, within=within, method="parabola")
        return abs(np.log(fit.lines["params"].at(BUDGETS[2])[0] / true))

    wide, near = error(None), error(3.0)

    assert near < wide / 3


def test_a_downward_budget_has_no_optimum_and_is_named():
    table = sweep()
    first = table["flops"] == BUDGETS[0]
    table["loss"][first] = 2 * table["loss"][first].mean() - table["loss"][first]

    line = fit_isoflop(table, n_draws=0, hold_out=False, method="parabola").lines["params"]

    assert line.budgets[0].status is FitStatus.DOWNWARD
    assert line.budgets[0].optimum is None
    assert line.budgets[0].coefficients is None
    assert "left out: budget 1e+18: the parabola opens downward" in line.sentence
    assert line.exponent == pytest.approx(0.5, abs=2e-3)


@pytest.mark.parametrize("method", ["parabola", "quartic", "akima"])
@pytest.mark.parametrize(("centre", "side"), [(20.0, "smaller"), (0.05, "larger")])
def test_a_lowest_point_at_the_edge_is_no_optimum(method, centre, side):
    line = fit_isoflop(sweep(centre=centre), method=method, n_draws=0, hold_out=False).lines[
        "params"
    ]

    assert {b.status for b in line.budgets} == {FitStatus.EDGE}
    assert line.status is FitStatus.UNDERDETERMINED
    assert not line.usable
    assert f"add {side} sizes" in line.sentence
    with pytest.raises(ValueError, match="no line"):
        line.at(1e22)


def scattered(n=120):
    """Runs whose FLOPs are spread over three decades without a gap."""
    compute = np.geomspace(1e18, 1e21, n)
    params = np.sqrt(compute / 120) * np.random.default_rng(0).uniform(0.5, 2, n)
    tokens = compute / 6 / params
    loss = 1.8 + 500 / params**0.35 + 500 / tokens**0.35
    return {"params": params, "tokens": tokens, "flops": compute, "loss": loss}


def test_a_chain_of_many_budgets_is_named_and_asks_for_budgets():
    table = scattered()

    fit = fit_isoflop(table, n_draws=0, hold_out=False)

    (chain,) = fit.lines["params"].budgets
    assert chain.chained
    assert chain.flops == pytest.approx((1e18, 1e21))
    for sentence in (chain.sentence, fit.verdict.sentence):
        assert "(runs of 1e+18 to 1e+21 FLOPs, a factor of 1e+03)" in sentence
        assert "say with budgets= which are of one" in sentence
        assert "sizes on both sides" not in sentence
        assert not any(f"add {side} sizes" in sentence for side in ("larger", "smaller"))


def test_a_chained_budget_with_an_optimum_makes_the_verdict_doubtful():
    table = sweep(spread=8, noise=0.002, n=9)
    few = np.flatnonzero(table["flops"] == BUDGETS[2])
    table["tokens"][few] *= np.geomspace(0.5, 2, 9)
    table["flops"][few] *= np.geomspace(0.5, 2, 9)

    fit = fit_isoflop(table, n_draws=0, hold_out=False)

    assert [b.chained for b in fit.lines["params"].budgets] == [False, False, True, False, False]
    assert fit.lines["params"].budgets[2].usable
    assert fit.verdict.status is VerdictStatus.DOUBTFUL
    assert "budgets=" in fit.verdict.sentence


def test_budgets_that_are_named_are_no_chain():
    table = scattered()
    names = [f"{v:.0f}" for v in np.round(2 * np.log10(table["flops"]))]

    fit = fit_isoflop(table, budgets=names, n_draws=0, hold_out=False)

    budgets = fit.lines["params"].budgets
    assert len(budgets) == 7
    assert not any(b.chained for b in budgets)
    assert "a factor of 3" in budgets[3].sentence


def test_two_budgets_make_no_line():
    table = sweep()
    two = table["flops"] < BUDGETS[2]

    line = fit_isoflop({k: v[two] for k, v in table.items()}, n_draws=0, hold_out=False).lines[
        "params"
    ]

    assert line.status is FitStatus.UNDERDETERMINED
    assert "2 budgets with an optimum" in line.sentence


@pytest.mark.parametrize("method", ["parabola", "quartic", "akima"])
def test_intervals_hold_the_truth(method):
    table = sweep(spread=8, noise=0.001, seeds=3, n=9, seed=1)
    fit = fit_isoflop(table, method=method, n_draws=200, hold_out=False)

    line = fit.lines["params"]
    assert line.interval[0] < 0.5 < line.interval[1]
    assert fit.exponents["params"][1][0] < 0.5 < fit.exponents["params"][1][1]
    value, low, high = line.at(1e22)
    assert low < value < high


def test_measured_flops_need_not_be_six_n_d():
    table = sweep()
    other = table | {
        "flops": table["flops"] * np.exp(0.02 * np.cos(np.arange(len(table["flops"]))))
    }

    fit = fit_isoflop(other, n_draws=0, hold_out=False)

    assert len(fit.lines["params"].budgets) == 5
    assert fit.lines["params"].exponent == pytest.approx(0.5, abs=0.01)


def test_bad_arguments():
    with pytest.raises(ValueError, match="method: must be auto, parabola, quartic or akima"):
        fit_isoflop(sweep(), method="cubic")
    with pytest.raises(ValueError, match="flops: no such column"):
        fit_isoflop({k: v for k, v in sweep().items() if k != "flops"})
    table = sweep()
    table["loss"][4] = np.nan
    with pytest.raises(ValueError, match="loss, row 4"):
        fit_isoflop(table)


def test_intervals_are_percentiles_at_the_level_of_the_design():
    """Nine sizes for three coefficients: resamples scatter more than fits do, so less than 95 % of them is taken."""
    table = sweep(spread=8, n=9, noise=0.001)
    line = fit_isoflop(table, n_draws=300, hold_out=False, method="parabola").lines["params"]
    akima = fit_isoflop(table, n_draws=50, hold_out=False, method="akima").lines["params"]

    assert 0.88 < line.drawn_level < 0.945
    shares = [(1 - line.drawn_level) / 2, (1 + line.drawn_level) / 2]
    assert line.interval == tuple(np.quantile(line.draws[:, 1], shares))
    at = np.quantile(line.draws[:, 0] + line.draws[:, 1] * np.log(1e20), shares)
    assert line.at(1e20)[1:] == pytest.approx(tuple(np.exp(at)))
    assert akima.drawn_level == 0.95


def test_the_larger_exponent_of_the_loss_is_the_smaller_one_of_its_size():
    """Hoffmann et al. 2022, equation 4: a = beta / (alpha + beta), b = alpha / (alpha + beta)."""
    fit = fit_isoflop(sweep(UNEVEN), n_draws=0, hold_out=False)

    assert fit.exponents["params"][0] == pytest.approx(2 / 3, abs=1e-4)
    assert fit.exponents["tokens"][0] == pytest.approx(1 / 3, abs=1e-4)
    assert fit.lines["params"].exponent == pytest.approx(2 / 3, abs=0.02)
    assert fit.lines["tokens"].exponent == pytest.approx(1 / 3, abs=0.02)


def test_the_loss_of_an_optimum_is_that_of_its_curve():
    u = np.asarray([-2.0, -1.0, 0.5, 1.0, 3.0])
    _, lowest, _ = parabola_minima(u, 2.5 + 0.3 * (u - 0.7) ** 2, np.ones((1, 5)))
    assert lowest[0] == pytest.approx(2.5, rel=1e-9)

    for budget in fit_isoflop(sweep(), n_draws=0, hold_out=False).lines["params"].budgets:
        tokens = budget.compute / 6 / budget.optimum
        true = (
            EVEN["E"]
            + EVEN["A"] / budget.optimum ** EVEN["alpha"]
            + EVEN["B"] / tokens ** EVEN["beta"]
        )
        assert budget.loss == pytest.approx(true, rel=1e-4)


def test_curves_that_are_no_parabola_get_a_quartic():
    """Sizes about 20 tokens per parameter, four octaves each side, of a law whose optimum drifts away from there."""
    rows = []
    for C in np.geomspace(1e18, 1e21, 7):
        N = np.sqrt(C / 120) * 2.0 ** np.arange(-4, 5)
        D = C / 6 / N
        L = UNEVEN["E"] + UNEVEN["A"] / N ** UNEVEN["alpha"] + UNEVEN["B"] / D ** UNEVEN["beta"]
        rows += zip(N, D, np.full(9, C), L, strict=True)
    noise = np.exp(0.003 * np.random.default_rng(1).standard_normal(63))
    table = dict(zip(("params", "tokens", "flops", "loss"), np.asarray(rows).T, strict=True))
    table["loss"] = table["loss"] * noise

    found = fit_isoflop(table, n_draws=200, hold_out=False).lines["params"]
    parabola = fit_isoflop(table, n_draws=0, hold_out=False, method="parabola").lines["params"]

    assert found.method == "quartic"
    assert abs(found.exponent - 2 / 3) < 0.02 < abs(parabola.exponent - 2 / 3)
    assert found.interval[0] < 2 / 3 < found.interval[1]
    assert found.interval[1] - found.interval[0] < 0.08


def test_parabolas_stay_parabolas():
    """Of 40 noisy sweeps of true parabolas the F-test rejects about one in twenty."""
    u = np.linspace(-2, 2, 9)
    generator = np.random.default_rng(0)

    def curves():
        return [(u, 2 + 0.1 * (u - 0.3) ** 2 + 0.01 * generator.standard_normal(9)) for _ in range(7)]  # fmt: skip

    assert sum(rejects_parabolas(curves()) for _ in range(200)) in range(3, 20)
    assert not rejects_parabolas([(u, 2 + 0.1 * u**2)] * 7)


def test_the_minimum_of_a_quartic_is_that_of_scipy():
    generator = np.random.default_rng(1)
    u = np.linspace(-2, 2, 12)
    y = 2 + 0.1 * (u - 0.4) ** 2 + 0.02 * u**3 + 0.01 * u**4 + 0.01 * generator.standard_normal(12)
    weights = generator.integers(1, 4, (20, 12)).astype(float)

    places, lowest, _ = quartic_minima(u, y, weights)

    for w, place, low in zip(weights, places, lowest, strict=True):
        curve = np.polynomial.Polynomial.fit(u, y, 4, w=np.sqrt(w))
        best = minimize_scalar(curve, bounds=(-2, 2), method="bounded", options={"xatol": 1e-10})
        assert place == pytest.approx(best.x, abs=1e-6)
        assert low == pytest.approx(best.fun, abs=1e-9)


def test_a_stated_budget_is_the_compute_of_its_runs():
    table = sweep()
    stated = table | {"budget": table["flops"] * 1.5}
    named = table | {"budget": [f"{v:g}" for v in table["flops"]]}

    line = fit_isoflop(stated, budgets="budget", n_draws=0, hold_out=False).lines["params"]

    np.testing.assert_allclose([b.compute for b in line.budgets], BUDGETS * 1.5)
    of_names = fit_isoflop(named, budgets="budget", n_draws=0, hold_out=False).lines["params"]
    np.testing.assert_allclose([b.compute for b in of_names.budgets], BUDGETS)
    with pytest.raises(ValueError, match=r"budgets: 1 for runs of 1e\+18 FLOPs"):
        fit_isoflop(table, budgets=np.repeat(np.arange(1, 6), 7), n_draws=0)


def test_the_verdict_is_that_of_the_law_which_lines_agree_with():
    table = sweep(spread=16.0, n=9, noise=0.003)

    fit = fit_isoflop(table, objective=SQUARES, n_draws=100, hold_out=False)

    assert fit.verdict.status is fit.parametric.verdict.status is VerdictStatus.ADEQUATE


def test_lines_and_parametric_law_that_disagree_are_doubtful():
    fit = fit_isoflop(
        sweep(spread=16.0, n=9, noise=0.003), objective=SQUARES, n_draws=100, hold_out=False
    )
    far = {size: (share - 0.2, (share - 0.21, share - 0.19)) for size, (share, _) in fit.exponents.items()}  # fmt: skip

    verdict = replace(fit, exponents=far).verdict

    assert verdict.status is VerdictStatus.DOUBTFUL
    assert "the exponent of the optimal params is" in verdict.sentence
    assert f"and {far['params'][0]:.3f} [" in verdict.sentence


def test_without_a_line_it_is_underdetermined():
    fit = fit_isoflop(sweep(), n_draws=0, hold_out=False)
    none = replace(fit.lines["params"], exponent=None, sentence="two budgets")

    verdict = replace(fit, lines={"params": none, "tokens": fit.lines["tokens"]}).verdict

    assert (verdict.status, verdict.sentence) == (VerdictStatus.UNDERDETERMINED, "two budgets")


def test_a_fit_prints_its_lines_and_has_a_table_of_its_budgets():
    table = sweep()
    table["bpb"] = table.pop("loss")

    fit = fit_isoflop(table, outcome="bpb", n_draws=0, hold_out=False)

    frame = fit.to_frame()
    assert frame["size"].tolist() == ["params"] * 5 + ["tokens"] * 5
    np.testing.assert_allclose(frame["budget_flops"][:5], BUDGETS)
    assert frame["optimum"].tolist() == [
        b.optimum for line in fit.lines.values() for b in line.budgets
    ]
    assert frame["bpb"].notna().all()
    text = fit.summary()
    assert "optimal params = G C^a, G = " in text
    assert ", a = 0.500; a by the parametric law 0.500" in text
    assert f"verdict: {fit.verdict}" in text
    assert pickle.loads(pickle.dumps(fit)).summary() == text


def test_a_fit_without_a_line_prints_why():
    text = fit_isoflop(sweep(centre=20.0), n_draws=0, hold_out=False).summary()

    assert "optimal params = G C^a, no line (underdetermined)" in text
    assert text.count("budget 1e+18: the lowest loss is not between the runs") == 2
