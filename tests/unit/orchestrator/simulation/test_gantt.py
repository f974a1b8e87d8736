"""What is drawn, in the terminal and into files, is what was simulated."""

import io
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from orchestrator.records import units
from orchestrator.scheduling.demand import Demand
from orchestrator.scheduling.wait_queue import Waiting
from orchestrator.simulation import cluster_spec, gantt, gantt_rows, summary
from orchestrator.simulation.simulate import LabelTotals, hours_by, simulate


def trials(*rows):
    return [
        Waiting(
            trial_id=f"t{i}",
            demand=Demand(cpus=cpus, gpus=gpus, gang_size=max(1, int(gpus))),
            predicted_s=float(seconds),
            order=i,
        )
        for i, (gpus, cpus, seconds) in enumerate(rows)
    ]


MIXED = trials((2, 2, 100), (0.5, 1, 60), (0.25, 1, 30), (0.3, 1, 50), (1, 1, 40), (16, 16, 20))
LABEL = {f"t{i}": ("dense", "memory")[i % 2] for i in range(50)}
COLOURS = {"dense": "#0072B2", "memory": "#D55E00"}


@given(
    st.sampled_from(["gpus=3", "gpus=12,gpus_per_node=4", "nodes=2,cpus_per_node=5"]),
    st.lists(
        st.tuples(st.sampled_from([0, 0.1, 0.3, 0.5, 1, 2]), st.integers(1, 4), st.integers(1, 99)),
        max_size=25,
    ),
)
def test_bars_never_cover_one_another_and_have_the_area_of_the_work(cluster, rows):
    nodes = cluster_spec.parse(cluster).nodes
    simulation = simulate(nodes, trials(*rows))
    bars = gantt_rows.bars(simulation)

    drawn = sum((bar.high - bar.low) * bar.run.seconds for bar in bars)
    work = simulation.gpu_seconds if simulation.by_gpu else simulation.core_seconds
    assert drawn == pytest.approx(work)
    for i, one in enumerate(bars):
        assert 0 <= one.low < one.high <= gantt_rows.height(simulation) + 1e-6
        for other in bars[:i]:
            apart = one.run.start_s >= other.run.end_s or other.run.start_s >= one.run.end_s
            assert apart or one.low >= other.high - 1e-6 or other.low >= one.high - 1e-6


def test_occupied_and_waiting_curves_end_empty_and_have_the_area_of_the_work():
    simulation = simulate(cluster_spec.parse("gpus=16").nodes, MIXED)

    times, busy = gantt.occupied(simulation)
    assert np.dot(np.diff(times), busy[:-1]) == pytest.approx(simulation.gpu_seconds)
    assert busy[-1] == pytest.approx(0)
    times, waiting = gantt.still_waiting(simulation)
    assert np.dot(np.diff(times), waiting[:-1]) == pytest.approx(sum(simulation.waited_s()))
    assert waiting[-1] == 0


@pytest.mark.parametrize("cluster", ["gpus=16", "nodes=2,cpus_per_node=16"])
def test_svg_has_every_architecture_and_the_title(tmp_path, cluster):
    rows = MIXED if cluster == "gpus=16" else trials((0, 3, 50), (0, 5, 20))
    simulation = simulate(cluster_spec.parse(cluster).nodes, rows)
    file = tmp_path / "new" / "folder" / "g.svg"

    gantt.draw(simulation, file, title="the title", label=LABEL, colours=COLOURS)

    text = file.read_text()
    ElementTree.fromstring(text)
    for word in ("the title", "dense", "memory", "busy", "waiting", "since the start"):
        assert word in text
    assert COLOURS["dense"].lower() in text.lower()


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a picture ends in .png, .svg, .pdf"):
        gantt.draw(simulate((), []), tmp_path / "g.doc", title="", label={}, colours={})


@pytest.mark.parametrize(
    ("seconds", "word"), [(9, "seconds"), (500, "minutes"), (9000, "hours"), (9e5, "days")]
)
def test_time_has_a_unit_that_fits(seconds, word):
    assert gantt.time_unit(seconds)[1] == word


def text_of(renderable, width=150):
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(renderable)
    return console.file.getvalue()


def test_terminal_picture_shades_a_cell_by_how_full_it_is():
    nodes = cluster_spec.parse("gpus=2").nodes
    simulation = simulate(nodes, trials((1, 1, 100), (0.25, 1, 50)))
    first, second, *_ = text_of(summary.picture(simulation, LABEL)).splitlines()

    assert first == "GPU 0 " + "█" * summary.COLUMNS
    assert second.rstrip() == "GPU 1 " + "░" * (summary.COLUMNS // 2)


def test_many_gpus_share_the_rows():
    simulation = simulate(cluster_spec.parse("gpus=1024").nodes, trials(*[(8, 8, 10)] * 64))
    lines = text_of(
        summary.picture(simulation, LABEL | {f"t{i}": "dense" for i in range(64)})
    ).splitlines()

    assert lines[0].split()[:2] == ["GPUs", "0-63"]
    assert lines[15].split()[:2] == ["GPUs", "960-1023"]
    assert lines[7].count("█") == summary.COLUMNS
    assert lines[8].count("█") == 0


def test_numbers_are_those_of_the_simulation():
    cluster = cluster_spec.parse("gpus=2")
    simulation = simulate(
        cluster.nodes, trials((2, 2, 3600), (1, 1, 1800), (1, 8, 1800), (8, 8, 1))
    )
    said = text_of(
        summary.simulation_text(simulation, cluster, name="s", label=LABEL, rate="given")
    )

    assert "makespan     1 h 30 min, 0.0% over what no schedule can beat" in said
    assert "100.0% of GPU-hours until then; 3 GPU-hours of training" in said
    assert "all up to 1 h 00 min" in said
    assert ["dense", "2", "2.5", "6"] in [line.split() for line in said.splitlines()]
    assert "note: 1 trial cannot run there: needs 8 GPUs and 8 cores" in said
    assert hours_by(simulation.runs, LABEL) == {
        "dense": LabelTotals(trials=2, gpu_hours=2.5, core_hours=6.0),
        "memory": LabelTotals(trials=1, gpu_hours=0.5, core_hours=0.5),
    }


def test_nothing_to_train_is_said():
    cluster = cluster_spec.parse("gpus=2")
    said = text_of(
        summary.simulation_text(simulate(cluster.nodes, []), cluster, name="s", label={}, rate="")
    )

    assert "Nothing to train." in said


@given(st.lists(st.integers(1, 99), min_size=1, max_size=30))
def test_so_many_trials_waited_no_longer_than_is_said(seconds):
    cluster = cluster_spec.parse("gpus=1")
    simulation = simulate(cluster.nodes, trials(*[(1, 1, s) for s in seconds]))
    said = text_of(
        summary.simulation_text(
            simulation,
            cluster,
            name="s",
            label=dict.fromkeys(map("t{}".format, range(30)), "a"),
            rate="",
        )
    )
    waited = simulation.waited_s()

    def least(share):
        enough = (w for w in waited if sum(one <= w for one in waited) * 10 >= share * len(waited))
        return units.short_duration(next(enough))

    text = f"half of the trials up to {least(5)}, nine of ten up to {least(9)}, all up to"
    assert text in " ".join(said.split())


def test_trials_that_fit_nowhere_are_something_to_train():
    cluster = cluster_spec.parse("gpus=2")
    simulation = simulate(cluster.nodes, trials((8, 8, 1)))
    said = text_of(summary.simulation_text(simulation, cluster, name="s", label=LABEL, rate=""))

    assert "Nothing can run." in said
    assert "note: 1 trial cannot run there" in said


def test_trials_without_a_gpu_are_counted_and_drawn_by_cores_beside_idle_gpus():
    cluster = cluster_spec.parse("gpus=2")
    simulation = simulate(cluster.nodes, trials((0, 16, 3600), (0, 16, 1800)))
    said = text_of(summary.simulation_text(simulation, cluster, name="s", label=LABEL, rate=""))

    assert simulation.goodput == 1.0
    assert "75.0% of core-hours until then; 24.0 core-hours of training" in said
    assert sum((b.high - b.low) * b.run.seconds for b in gantt_rows.bars(simulation)) == 24 * 3600
    assert "gpu_memory" not in said
