from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.lines import Line2D

from analysis.fitting.verdict import FitVerdict, VerdictStatus
from analysis.plotting.axes import legend_above
from analysis.plotting.canvas import image, new_figure
from analysis.plotting.design_figure import design_figure
from analysis.plotting.draw import draw
from analysis.plotting.frontier_figure import frontier_figure
from analysis.plotting.multipliers_figure import multipliers_figure
from analysis.plotting.style import COLOURS
from analysis.scaling.compute_multiplier import multipliers
from analysis.scaling.design_candidate import Candidate
from analysis.scaling.design_targets import LossAt
from analysis.scaling.experimental_design import next_runs
from analysis.scaling.frontier import frontier


@pytest.fixture(scope="module")
def curves(noisy_families):
    amounts = np.geomspace(1e15, 1e20, 12)
    return [
        multipliers(noisy_families, "memory", amounts=amounts),
        multipliers(noisy_families, "memory", measure="stored_bytes", tokens=1e9),
    ]


def texts(figure):
    return [
        t.get_text()
        for axis in figure.axes
        for t in (axis.title, axis.xaxis.label, axis.yaxis.label)
    ] + [t.get_text() for legend in figure.legends for t in legend.get_texts()]


def test_multipliers_have_a_panel_each_and_one_colour_per_architecture(curves):
    figure = multipliers_figure(curves)

    assert len(figure.axes) == 2
    words = " | ".join(texts(figure))
    assert "At equal training FLOPs" in figure.axes[0].get_title(loc="left")
    assert "both trained on 1 G tokens" in words
    assert "outside the runs of either" in words
    (legend,) = figure.legends
    assert legend.get_lines()[0].get_color() == COLOURS[1]  # the reference is the first colour
    assert len(image(figure, "png")) > 20_000


def test_ground_is_shaded_where_a_curve_extrapolates_and_nowhere_else(curves):
    figure = multipliers_figure(curves[:1])

    ends = [(p.get_x(), p.get_x() + p.get_width()) for p in figure.axes[0].patches]
    shaded = [any(low <= x <= high for low, high in ends) for x in curves[0].amount]
    assert 0 < sum(shaded) < len(shaded)
    assert shaded == list(curves[0].extrapolated)


@pytest.mark.parametrize("names", [3, 7])
def test_the_legend_lies_within_the_figure(names):
    figure = new_figure(4.9, 4.4)
    figure.subplots()
    handles = [Line2D([], [], label=f"an_architecture_of_a_long_name_{i}") for i in range(names)]

    legend_above(figure, handles, most_columns=3)

    figure.draw_without_rendering()
    (legend,) = figure.legends
    extent = legend.get_window_extent()
    assert figure.bbox.x0 <= extent.x0
    assert extent.x1 <= figure.bbox.x1
    assert len(legend.get_texts()) == names


@pytest.mark.parametrize("n_panels", [1, 2])
def test_the_caption_lies_within_the_figure(curves, n_panels):
    beyond = replace(curves[0], high=np.full(12, np.inf))
    figure = multipliers_figure([beyond, curves[1]][:n_panels])
    figure.draw_without_rendering()

    box = figure._supxlabel.get_window_extent(figure.canvas.get_renderer())

    assert "arrow: the band goes on outside" in figure.get_supxlabel().replace("\n", " ")
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_laws_of_architectures_are_drawn_with_a_series_each(noisy_families):
    figure = draw(noisy_families)

    (legend,) = figure.legends
    assert [t.get_text() for t in legend.get_texts()][:2] == ["dense", "memory"]
    assert figure.axes[0].get_ylabel() == "Loss (nats per token)"


def arrows(axis):
    """The edge that each arrow of a panel points at, and where."""
    return [(a.xy[1], a.xy[0]) for a in axis.texts if a.arrow_patch is not None]


def test_a_band_that_leaves_the_panel_has_an_arrow_there_and_does_not_set_the_scale(curves):
    flops = curves[0]
    plain = replace(flops, low=flops.multiplier / 1.1, high=flops.multiplier * 1.1)
    endless = replace(
        plain,
        high=np.where(np.arange(12) >= 8, np.inf, plain.high),
        low=np.where(np.arange(12) < 2, plain.low / 1e6, plain.low),
    )

    (within,), (beyond,) = (multipliers_figure([c]).axes for c in (plain, endless))

    assert arrows(within) == []
    (below, left), (above, right) = arrows(beyond)
    assert (below, above) == (0.0, 1.0)
    assert flops.amount[1] < left < flops.amount[2]
    assert flops.amount[7] < right < flops.amount[8]
    assert beyond.get_ylim() == within.get_ylim()
    captions = [multipliers_figure([c]).get_supxlabel() for c in (plain, endless)]
    arrow = ["arrow: the band goes on outside" in c.replace("\n", " ") for c in captions]
    assert arrow == [False, True]


@pytest.mark.parametrize("low", [0.5, np.inf])
def test_a_band_that_is_outside_all_along_has_one_arrow(curves, low):
    endless = replace(curves[0], low=np.full(12, low), high=np.full(12, np.inf))

    (panel,) = multipliers_figure([endless]).axes

    assert [edge for edge, _ in arrows(panel)].count(1.0) == 1


def test_bands_on_runs_are_drawn_whole_unless_far_wider_than_the_curves(curves):
    flops = curves[0]
    firm = ~flops.extrapolated
    assert firm.any()
    plain = replace(flops, low=flops.multiplier / 1.1, high=flops.multiplier * 1.1)
    wide, wider = (
        replace(plain, high=np.where(firm, flops.multiplier * factor, plain.high))
        for factor in (4.0, 1e3)
    )

    (some,), (most,) = (multipliers_figure([c]).axes for c in (wide, wider))

    assert some.get_ylim()[1] > wide.high[firm].max()
    assert arrows(some) == []
    assert most.get_ylim()[1] < 10 * flops.multiplier.max()
    assert arrows(most)


def test_a_reference_of_several_kinds_is_refused(curves, noisy_families):
    other = multipliers(noisy_families, "dense", reference="memory", amounts=[1e17])

    with pytest.raises(ValueError, match="curves of one reference"):
        multipliers_figure([*curves, other])


def test_the_frontier_shows_shares_that_fill_the_panel(noisy_families, exact_families):
    found = frontier(noisy_families, budgets=np.geomspace(1e15, 1e20, 8))
    # Of tables of noise one in thirty is called a misfit, and this is one.
    fits = {name: exact_families.named(name).fit for name in found.fits}

    figure = frontier_figure(replace(found, fits=fits))

    assert [a.get_title(loc="left") for a in figure.axes] == [
        "Best loss", "Best size", "Best training length", "Which architecture is best",
    ]  # fmt: skip
    assert figure.axes[3].get_ylim() == (0, 1)
    assert len(image(figure, "png")) > 20_000


def test_the_frontier_of_one_architecture_names_no_winner_and_who_is_missing(noisy_families):
    why = "its law is underdetermined: tokens is the same in all runs"
    dense = {"dense": noisy_families.named("dense")}
    alone = replace(noisy_families, by_name=dense, left_out={"memory": why})

    figure = frontier_figure(frontier(alone, budgets=np.geomspace(1e15, 1e20, 8)))

    titles = [a.get_title(loc="left") for a in figure.axes]
    assert titles == ["Best loss", "Best size", "Best training length"]
    assert f"without memory: {why}" in figure.get_supxlabel().replace("\n", " ")


@pytest.mark.parametrize("status", list(VerdictStatus))
def test_titles_of_a_frontier_name_a_verdict_with_which_nothing_is_claimed(noisy_families, status):
    found = frontier(noisy_families, budgets=np.geomspace(1e15, 1e20, 8))
    fit = SimpleNamespace(usable=True, verdict=FitVerdict(status=status, sentence="A is open"))

    figure = frontier_figure(replace(found, fits=dict.fromkeys(found.fits, fit)))

    titles = [a.get_title(loc="left") for a in figure.axes]
    claimed = status in (VerdictStatus.ADEQUATE, VerdictStatus.DOUBTFUL)
    assert [t.endswith(f" ({status})") for t in titles] == [not claimed] * 4


def test_draws_without_a_best_size_are_left_white(noisy_families):
    found = frontier(noisy_families, budgets=np.geomspace(1e15, 1e20, 8))
    fewer = {
        name: replace(best, share=0.8 * best.share) for name, best in found.allocations.items()
    }

    drawn = [frontier_figure(f).axes[3] for f in (found, replace(found, allocations=fewer))]

    labels = [[text.get_text() for text in axes.texts] for axes in drawn]
    assert ["no best size" in names for names in labels] == [False, True]


NO_BAND = "no band: too few runs for an interval"


@pytest.mark.parametrize("size", [False, True])
def test_multipliers_without_draws_say_that_there_is_no_band(curves, exact_families, size):
    bare = multipliers(exact_families, "memory", amounts=np.geomspace(1e15, 1e18, 12))

    captions = [multipliers_figure(of, size=size).get_supxlabel() for of in ([bare], curves)]

    assert captions[0].startswith(NO_BAND)
    assert "resampled" not in captions[0]
    assert captions[1].startswith("band: 95% of resampled runs")
    assert multipliers_figure([bare, *curves]).get_supxlabel().startswith("band: ")


def test_a_frontier_without_draws_has_no_band_and_no_empty_panel(exact_families):
    found = frontier(exact_families, budgets=np.geomspace(1e15, 1e18, 8))
    one_length = replace(
        found,
        allocations={
            name: replace(best, tokens=np.full(8, np.nan))
            for name, best in found.allocations.items()
        },
    )

    figures = [frontier_figure(f) for f in (found, one_length)]

    titles = [[a.get_title(loc="left") for a in figure.axes] for figure in figures]
    assert titles == [
        ["Best loss", "Best size", "Best training length"],
        ["Best loss", "Best size"],
    ]
    assert [f.get_supxlabel() for f in figures] == [NO_BAND] * 2


def test_the_design_figure_numbers_what_is_chosen(noisy_families):
    candidates = [
        Candidate(
            name=f"{N:g}",
            architecture="memory",
            inputs={"params": N, "tokens": 20 * N},
            gpu_hours=N / 1e8,
        )
        for N in (1e7, 1e8, 3e8)
    ]
    target = LossAt(architecture="memory", inputs={"params": 1e9, "tokens": 2e10})
    found = next_runs(noisy_families, candidates, target, n_runs=2, worth=0.0)

    figure = design_figure(found)

    numbers = [t.get_text() for t in figure.axes[1].texts]
    assert sorted(numbers) == ["1", "2"]
    assert len(image(figure, "png")) > 20_000


def test_the_line_of_what_is_chosen_stays_in_the_picture(noisy_families):
    """It goes on to the hours of all chosen runs together, beyond each alone."""
    candidates = [
        Candidate(
            name=f"{N:g}",
            architecture="memory",
            inputs={"params": N, "tokens": 2 * N},
            gpu_hours=1.0,
        )
        for N in (1e8, 2e8, 3e8, 4e8)
    ]
    target = LossAt(architecture="memory", inputs={"params": 1e9, "tokens": 2e10})
    found = next_runs(noisy_families, candidates, target, n_runs=4, worth=0.0)

    price = design_figure(found).axes[1]

    assert len(found.chosen) > 1
    assert price.get_xlim()[1] > found.gpu_hours
