"""A figure for every fit: what is drawn is the fit's own numbers, and what has none is said."""

import io

import matplotlib
import numpy as np
import pandas as pd
import pytest
from cycler import cycler
from matplotlib.colors import to_hex
from matplotlib.text import Text
from PIL import Image

from analysis.fitting.fit_law import fit_law
from analysis.fitting.objective import SQUARES
from analysis.fitting.synthetic import make_inputs, make_runs
from analysis.fitting.two_stage import fit_chain
from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.kaplan import KAPLAN
from analysis.laws.loss_to_accuracy import Sigmoid
from analysis.laws.power import PowerLaw
from analysis.laws.shared_coefficients import SharedCoefficients
from analysis.laws.sparse import JOINT_SHARED
from analysis.laws.vocabulary import VOCABULARY
from analysis.plotting.canvas import image
from analysis.plotting.chain_figure import chain_figure
from analysis.plotting.draw import draw
from analysis.plotting.law_figure import law_figure
from analysis.plotting.style import series_styles
from analysis.scaling.envelope import fit_envelope
from analysis.scaling.isoflop import fit_isoflop

DRAWS = {"n_draws": 40, "objective": SQUARES}


def texts(figure):
    legends = [t.get_text() for legend in figure.legends for t in legend.get_texts()]
    return " ".join([*legends, figure._supxlabel.get_text().replace("\n", " ")])


def curves(axis):
    """Fitted curves: lines that run beyond the runs."""
    return [
        line
        for line in axis.lines
        if line.get_marker() in ("None", "", None)
        and len(line.get_xdata()) > 50
        and line.get_linewidth() < 2.1
    ]


def points(axis):
    return [line for line in axis.lines if line.get_linestyle() == "None"]


@pytest.fixture(scope="module")
def dense():
    return fit_law(CHINCHILLA, make_runs(CHINCHILLA, 24, noise=0.006), **DRAWS)


@pytest.fixture(scope="module")
def other():
    table = make_runs(CHINCHILLA, 20, noise=0.006, inputs_seed=3, seed=3)
    return fit_law(CHINCHILLA, table | {"loss": 0.95 * table["loss"]}, **DRAWS)


@pytest.fixture(scope="module")
def figure(dense, other):
    few = fit_law(CHINCHILLA, make_runs(CHINCHILLA, 4, noise=0.006))
    return law_figure({"dense": dense, "moe": other, "few": few})


def test_a_column_for_every_size_with_the_residuals_below(figure, dense):
    axes = figure.axes
    assert len(axes) == 4
    assert [a.get_xlabel() for a in axes[2:]] == ["Parameters", "Training tokens"]
    drawn = points(axes[2])[0]
    np.testing.assert_allclose(drawn.get_xdata(), dense.inputs["params"])
    np.testing.assert_allclose(drawn.get_ydata(), np.exp(-dense.residuals) - 1, rtol=1e-9)


def test_the_curve_is_the_law_and_the_runs_keep_their_residuals(figure, dense):
    curve, runs = curves(figure.axes[0])[0], points(figure.axes[0])[0]
    tokens = float(figure.axes[0].get_title(loc="left").split()[-2]) * 1e9
    at = {"params": curve.get_xdata(), "tokens": np.full(len(curve.get_xdata()), tokens)}

    np.testing.assert_allclose(curve.get_ydata(), dense.predict(at).y, rtol=2e-3)
    moved = dense.predict({"params": runs.get_xdata(), "tokens": np.full(24, tokens)}).y
    np.testing.assert_allclose(runs.get_ydata() / moved, np.exp(-dense.residuals), rtol=2e-3)


def test_the_outcome_has_its_own_name():
    runs = make_runs(CHINCHILLA, 12, noise=0.01)
    runs["eval/hellaswag_bpb"] = runs.pop("loss")

    figure = draw(
        fit_law(CHINCHILLA, runs, outcome="eval/hellaswag_bpb", n_draws=0, hold_out=False)
    )

    assert figure.axes[0].get_ylabel() == "hellaswag_bpb"


def test_a_notebook_shows_the_picture(figure):
    formatters = pytest.importorskip("IPython.core.formatters")

    shown, sizes = formatters.DisplayFormatter().format(figure)

    picture = Image.open(io.BytesIO(shown["image/png"]))
    width, height = (100 * inches for inches in figure.get_size_inches())
    assert picture.size == pytest.approx((2 * width, 2 * height), abs=2)
    assert sizes["image/png"] == pytest.approx({"width": width, "height": height}, abs=1)
    assert len(np.unique(np.asarray(picture.convert("L")))) > 10


def test_two_bands_and_hatched_extrapolation(figure):
    upper = figure.axes[0]
    bands = [c for c in upper.collections if len(c.get_paths())]
    assert len(bands) == 4  # two series, curve and new run
    hatched = [p for p in upper.patches if p.get_hatch()]
    assert len(hatched) == 2
    assert max(max(c.get_xdata()) for c in curves(upper)) > 3 * max(
        max(p.get_xdata()) for p in points(upper)
    )


def test_one_colour_per_architecture_and_the_failed_one_is_told(figure):
    styles = series_styles(["dense", "moe"])
    assert [to_hex(c.get_color()).upper() for c in curves(figure.axes[0])] == [
        s.colour for s in styles.values()
    ]
    assert "dense moe extrapolation" in texts(figure)
    assert "few: no curve, 4 distinct runs for 5 parameters" in texts(figure)


def test_a_misfit_is_dashed_and_said(figure, dense):
    wrong = fit_law(KAPLAN, make_runs(CHINCHILLA, 40, noise=0.003), **DRAWS)
    assert (dense.verdict.is_misfit, wrong.verdict.is_misfit) == (False, True)

    drawn = law_figure({"wrong": wrong})

    assert not any(line.is_dashed() for line in curves(figure.axes[0]))
    assert all(line.is_dashed() for line in curves(drawn.axes[0]))
    assert "the law is wrong for the runs of wrong" in texts(drawn)
    assert "wrong for the runs" not in texts(figure)


def test_held_out_runs_are_crosses(figure, dense):
    crosses = next(line for line in figure.axes[2].lines if line.get_marker() == "x")

    np.testing.assert_allclose(
        crosses.get_xdata(), dense.inputs["params"][dense.hold_out.rows], rtol=1e-12
    )
    errors = dense.hold_out.observed / dense.hold_out.predicted - 1
    np.testing.assert_allclose(crosses.get_ydata(), errors, rtol=1e-9)


def test_held_out_runs_of_negative_outcomes_are_drawn():
    inputs = make_inputs(VOCABULARY, 40)
    truth = np.asarray([VOCABULARY.example[name] for name in VOCABULARY.parameter_names])
    fit = fit_law(VOCABULARY, inputs | {"loss": VOCABULARY.evaluate(inputs, truth) - 6}, n_draws=0)

    crosses = next(line for line in law_figure(fit).axes[3].lines if line.get_marker() == "x")

    errors = fit.hold_out.observed / fit.hold_out.predicted - 1
    np.testing.assert_allclose(crosses.get_ydata(), errors, rtol=1e-9)


def test_groups_of_one_law_are_series():
    law = SharedCoefficients(CHINCHILLA, own=["A"], groups=("dense", "memory"))
    table = make_runs(CHINCHILLA, 40, noise=0.004)
    table["group"] = np.arange(40) % 2
    fit = fit_law(law, table, hold_out=False, **DRAWS)

    figure = law_figure(fit)

    assert len(curves(figure.axes[0])) == 2
    assert "dense memory" in texts(figure)
    assert len(points(figure.axes[2])[1].get_xdata()) == 20


def test_runs_without_memory_stand_left_of_the_smallest():
    fit = fit_law(JOINT_SHARED, make_runs(JOINT_SHARED, 40, noise=0.004), hold_out=False, **DRAWS)

    axis = law_figure(fit).axes[4]

    assert "leftmost: none" in axis.get_xlabel()
    x = points(axis)[0].get_xdata()
    none = fit.inputs["n_memory"] == 0
    assert x[none].max() < x[~none].min()


def test_a_chain_is_three_columns():
    table = make_runs(CHINCHILLA, 30, noise=0.004)
    table["accuracy"] = 0.25 + 0.6 / (1 + np.exp(2 * (table["loss"] - 2.6)))
    chain = fit_chain(CHINCHILLA, Sigmoid(chance=0.25), table, n_draws=30, hold_out=False)

    figure = chain_figure({"dense": chain})

    assert len(figure.axes) == 6
    through = curves(figure.axes[2])[0]
    assert through.get_ydata()[0] < through.get_ydata()[-1] <= 0.9
    residuals = points(figure.axes[5])[0].get_ydata()
    expected = table["accuracy"] - chain.predict({k: table[k] for k in ("params", "tokens")}).y
    np.testing.assert_allclose(residuals, expected, atol=1e-9)


@pytest.fixture(scope="module")
def budgets():
    rows = [
        (r * 0.12 * c**0.5, c)
        for c in (1e18, 3e18, 1e19, 3e19)
        for r in np.geomspace(0.2, 5, 6)
        if c < 3e19 or r > 1.5
    ]
    table = pd.DataFrame(rows, columns=["params", "flops"])
    table["tokens"] = table["flops"] / 6 / table["params"]
    truth = np.asarray(list(CHINCHILLA.example.values()))
    table["loss"] = CHINCHILLA.evaluate(
        {k: table[k].to_numpy() for k in ("params", "tokens")}, truth
    )
    return table


@pytest.mark.parametrize("method", ["parabola", "akima"])
def test_isoflop_shows_budgets_line_and_what_has_no_optimum(budgets, method):
    fit = fit_isoflop(budgets, n_draws=20, method=method)

    figure = draw(fit, size="params")

    line = fit.lines["params"]
    assert not line.budgets[-1].usable
    rings = [a for a in figure.axes[0].lines if a.get_markersize() == 8]
    assert [r.get_xdata()[0] for r in rings] == [b.optimum for b in line.budgets if b.usable]
    assert figure.axes[0].get_ylabel() == "Loss (nats per token)"
    assert f"exponent {line.exponent:.3f}" in figure.axes[1].get_title(loc="left")
    assert "budget 3e+19" in texts(figure)
    assert figure.axes[2].yaxis.get_visible() == (method == "parabola")  # Akima has no residuals


def test_an_envelope_has_its_line_and_its_grey_edges():
    rows = [
        (f"{n:.2g}", n, 6 * n * d, 1.8 + 400 / n**0.34 + 2000 / d**0.36)
        for n in np.geomspace(2e7, 2e9, 7)
        for d in np.geomspace(1e8, 6e10, 20)
    ]
    fit = fit_envelope(pd.DataFrame(rows, columns=["run", "params", "flops", "loss"]), n_draws=20)

    figure = draw(fit)

    line = curves(figure.axes[1])[0]
    np.testing.assert_allclose(line.get_ydata(), fit.coefficient * line.get_xdata() ** fit.exponent)
    assert "left out" in texts(figure)
    assert figure.axes[0].get_ylabel() == "Loss (nats per token)"
    np.testing.assert_array_equal(fit.lines[:, 1], fit.draws)


def test_a_curve_of_one_size():
    x = np.geomspace(1e5, 1e8, 8)
    fit = fit_law(PowerLaw(), {"x": x, "loss": 1.5 + 40 / x**0.3}, n_draws=20)

    figure = draw(fit, x="total_params")

    assert figure.axes[0].get_ylabel() == "Loss (nats per token)"
    assert figure.axes[1].get_xlabel() == "Total parameters"
    assert len(image(figure, "png")) > 10_000


def test_a_law_of_one_size_has_the_label_that_is_given():
    sizes = np.geomspace(1e6, 1e8, 8)
    runs = {"x": sizes, "loss": 2.0 + 300 * sizes**-0.4}
    fits = {name: fit_law("power", runs, n_draws=0) for name in ("dense", "primer")}

    panel, _ = draw(fits, x="training_flops", outcome="bits").axes

    assert panel.get_ylabel() == "bits"
    assert draw(fits, x="training_flops").axes[1].get_xlabel() == "Training compute (FLOPs)"


def test_one_label_for_several_sizes_is_refused(dense):
    with pytest.raises(ValueError, match="x: the figure has an axis for each of params, tokens"):
        draw(dense, x="Size")


def test_fonts_and_colours_that_somebody_set_hold(dense):
    before = to_hex(draw(dense).axes[0].get_lines()[0].get_color())
    with matplotlib.rc_context(
        {"font.family": "serif", "font.size": 7, "axes.prop_cycle": cycler(color=["purple", "k"])}
    ):
        figure = draw({"a": dense, "b": dense})
        svg = image(figure, "svg").decode()

    assert before == "#0072b2"
    assert before not in svg.lower()
    assert {"#800080", "#000000"} <= {to_hex(n.get_color()) for n in figure.axes[0].get_lines()}
    assert figure.axes[0].yaxis.label.get_fontsize() == 7
    assert {text.get_fontfamily()[0] for text in figure.findobj(Text)} == {"serif"}
    assert "DejaVu Sans'" not in svg


def test_equal_numbers_give_an_equal_picture():
    x = np.geomspace(1e5, 1e8, 8)
    fit = fit_law(PowerLaw(), {"x": x, "loss": 1.5 + 40 / x**0.3}, n_draws=20)

    assert image(draw(fit), "svg") == image(draw(fit), "svg")


def test_nothing_to_draw_is_an_error_that_says_why():
    few = fit_law(CHINCHILLA, make_runs(CHINCHILLA, 4, noise=0.006))

    with pytest.raises(ValueError, match="no fit has numbers to draw .*4 distinct runs"):
        law_figure(few)
    with pytest.raises(ValueError, match="got dict"):
        draw({})
