"""Sweeps that tune a setting at one size: their figures of outcomes and of use."""

from dataclasses import replace
from itertools import pairwise

import pytest
from matplotlib.colors import same_color

import analysis
from analysis.plotting.sweep_figure import sweep_figure, sweep_styles
from analysis.plotting.usage_figure import MOST_ROWS, usage_figure
from analysis.scaling.tuned_setting import tuned_setting

RATES = (0.001, 0.003, 0.006)


def trial(synthetic, architecture, loss, *, seed=0, size=32, model=(), **train):
    made = synthetic.make_trial(architecture, size, seed)
    spec = replace(
        made.spec,
        train={**made.spec.train, **train},
        model={**made.spec.model, **dict(model)},
    )
    return replace(made, spec=spec, metrics={"valid/loss": loss})


def tuned_trials(synthetic, losses, **options):
    """Architecture to a loss for each of the rates."""
    return [
        trial(synthetic, architecture, loss, lr=lr, **options)
        for architecture, of_rates in losses.items()
        for lr, loss in zip(RATES, of_rates, strict=False)
    ]


def loaded(synthetic, folder, trials):
    runs = analysis.load(synthetic.write_reporting(folder, trials))
    return runs, analysis.fit_sweep(runs, n_draws=5)


LOSSES = {
    "dense": (4.0, 3.5, 3.8),
    "engram": (3.9, 3.6, 3.4),
    "memory": (3.7, 3.65, 3.66),
}


def lines(axis, style):
    return [line for line in axis.lines if line.get_linestyle() == style]


def filled(axis):
    """Return the place and colour of every filled marker, seeds' dots left out."""
    return [
        ((line.get_xdata()[0], line.get_ydata()[0]), line.get_markerfacecolor())
        for line in axis.lines
        if line.get_marker() != "None"
        and line.get_markersize() > 5
        and line.get_markerfacecolor() != "white"
    ]


def test_a_line_per_arm_over_the_setting_and_the_best_of_each_beside_it(synthetic, tmp_path):
    scaled = {"output_init": "depth_scaled"}
    trials = [
        *tuned_trials(synthetic, LOSSES),
        *tuned_trials(synthetic, {"dense": (3.9, 3.55, 3.7)}, model=scaled),
    ]

    figure = sweep_figure(*loaded(synthetic, tmp_path, trials))

    left, right = figure.axes
    assert left.get_title(loc="left") == "Loss against lr"
    assert left.get_xscale() == "log"
    assert [label.get_text() for label in left.get_xticklabels()] == ["1e-3", "3e-3", "6e-3"]
    drawn = sorted(tuple(line.get_ydata()) for line in lines(left, ":"))
    assert drawn == sorted([*LOSSES.values(), (3.9, 3.55, 3.7)])
    names = [label.get_text() for label in right.get_yticklabels()]
    assert names == ["engram", "dense", "dense (output_init=depth_scaled)", "memory"]
    assert [at for at, _ in filled(right)] == [(3.4, 0), (3.5, 1), (3.55, 2), (3.65, 3)]
    best = {at for at, _ in filled(left)}
    assert best == {(0.006, 3.4), (0.003, 3.5), (0.003, 3.55), (0.003, 3.65)}
    (values,) = right.child_axes
    texts = [label.get_text() for label in values.get_yticklabels()]
    assert texts[:2] == ["3.400 at 6e-3", "3.500 at 3e-3"]
    assert figure.get_supxlabel().endswith("best at the edge of what was tried: engram")


def test_rows_and_lines_of_an_arm_look_alike(synthetic, tmp_path):
    left, right = sweep_figure(*loaded(synthetic, tmp_path, tuned_trials(synthetic, LOSSES))).axes

    of_losses = {at[1]: colour for at, colour in filled(left)}
    for (loss, row), colour in filled(right):
        assert same_color(of_losses[loss], colour)
        assert same_color(right.get_yticklabels()[int(row)].get_color(), colour)


def test_seeds_are_dots_and_the_best_has_their_range(synthetic, tmp_path):
    trials = [
        t
        for seed in range(2)
        for t in tuned_trials(
            synthetic,
            {name: [loss + 0.1 * seed for loss in of] for name, of in LOSSES.items()},
            seed=seed,
        )
    ]

    figure = sweep_figure(*loaded(synthetic, tmp_path, trials))

    left, right = figure.axes
    assert lines(left, ":")[0].get_ydata() == pytest.approx([3.95, 3.65, 3.45])
    bars = lines(right, "-")
    assert bars[0].get_xdata() == pytest.approx([3.4, 3.5])
    assert "dot: one seed" in figure.get_supxlabel()
    assert "bar: range of seeds" in figure.get_supxlabel()


def test_nothing_of_many_arms_is_cut_off(synthetic, tmp_path):
    losses = {f"architecture_with_a_long_name_{i:02d}": (4.0, 3.5 + 0.01 * i) for i in range(30)}

    figure = sweep_figure(*loaded(synthetic, tmp_path, tuned_trials(synthetic, losses)))
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()

    left, right = figure.axes
    names = [label.get_window_extent(renderer) for label in right.get_yticklabels()]
    (values,) = right.child_axes
    others = [label.get_window_extent(renderer) for label in values.get_yticklabels()]
    below = figure._supxlabel.get_window_extent(renderer)
    for box in (*names, *others, below):
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
    assert not any(box.overlaps(left.get_window_extent(renderer)) for box in names)
    assert not any(a.overlaps(b) for a, b in pairwise(names))
    assert "edge of what was tried: 30 of 30" in figure.get_supxlabel()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"size": 64}, id="another size"),
        pytest.param({"grad_clip": 0.5}, id="a second number"),
    ],
)
def test_where_more_than_one_setting_varies_outcomes_stand_against_size(
    synthetic, tmp_path, change
):
    trials = [*tuned_trials(synthetic, LOSSES), *tuned_trials(synthetic, LOSSES, **change)]
    runs, fits = loaded(synthetic, tmp_path, trials)

    assert tuned_setting(runs.table, fits) is None
    titles = [axis.get_title(loc="left") for axis in sweep_figure(runs, fits).axes]
    assert titles == ["Loss against parameters", "Loss against training compute"]


def test_a_setting_in_words_or_of_one_arm_alone_is_no_axis(synthetic, tmp_path):
    few = {"dense": LOSSES["dense"], "engram": (3.9,), "memory": (3.7,)}
    words = [
        trial(synthetic, "dense", loss, schedule=schedule)
        for schedule, loss in (("cosine", 3.5), ("wsd", 3.6))
    ]

    for folder, trials in (("few", tuned_trials(synthetic, few)), ("words", words)):
        runs, fits = loaded(synthetic, tmp_path / folder, trials)
        assert fits.varied
        assert tuned_setting(runs.table, fits) is None


def test_use_is_shown_of_the_best_setting_of_each_architecture_and_size(synthetic, tmp_path):
    trials = [
        *tuned_trials(synthetic, LOSSES),
        *tuned_trials(synthetic, {"memory": (3.2, 3.3, 3.4)}, size=64),
    ]
    runs, fits = loaded(synthetic, tmp_path, trials)

    figure = usage_figure(runs, fits, analysis.histories(runs))

    firsts = [axis for axis in figure.axes if len(axis.texts) == 2]
    assert [[text.get_text() for text in axis.texts] for axis in firsts] == [
        ["engram", "32w\nlr=6e-3"],
        ["memory", "64w, largest of 2\nlr=1e-3"],
    ]
    assert figure.get_supxlabel().endswith("settings: the best of those tried")


def test_use_has_the_colours_of_the_lines(synthetic, tmp_path):
    runs, fits = loaded(synthetic, tmp_path, tuned_trials(synthetic, LOSSES))

    figure = usage_figure(runs, fits, analysis.histories(runs))

    (of_memory,) = {sweep_styles(runs, fits)[f"memory (lr={lr})"].colour for lr in ("1e-3", "3e-3")}
    named = [text for axis in figure.axes for text in axis.texts if text.get_text() == "memory"]
    assert same_color(named[0].get_color(), of_memory)


def test_of_too_many_rows_the_best_are_drawn(synthetic, tmp_path):
    names = [f"sparse_{i:02d}" for i in range(MOST_ROWS + 2)]
    losses = [3.0 + 0.01 * (i * 7 % len(names)) for i in range(len(names))]
    trials = [trial(synthetic, *pair) for pair in zip(names, losses, strict=True)]
    runs, fits = loaded(synthetic, tmp_path, trials)

    figure = usage_figure(runs, fits, analysis.histories(runs))

    drawn = [axis.texts[0].get_text().replace("\n", "") for axis in figure.axes if axis.texts]
    assert drawn == [
        name for name, loss in zip(names, losses, strict=True) if loss < sorted(losses)[MOST_ROWS]
    ]
    assert figure.get_supxlabel().endswith(f"the {MOST_ROWS} of best outcome, 2 left out")
