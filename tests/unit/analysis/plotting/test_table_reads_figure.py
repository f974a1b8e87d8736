"""Figure of table reads: what is drawn is what was counted."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.loading.table_reads import FOLDER, LayerReads, read_table_reads
from analysis.plotting.table_reads_figure import (
    MOST_LAYERS,
    octaves,
    share_curve,
    shares_of_rows,
    table_reads_figure,
)

READS = st.lists(st.integers(0, 5_000), min_size=1, max_size=50).filter(any).map(np.array)


def layer(label, reads):
    return LayerReads(label=label, reads=np.array(reads), table_rows=(len(reads),))


@given(st.lists(READS, min_size=1, max_size=3))
def test_every_row_is_in_one_bin_and_every_bin_in_reach_holds_some_number_of_reads(several):
    edges = octaves([layer("x", reads) for reads in several])
    for reads in several:
        counted, uniform = shares_of_rows(reads, edges)
        assert counted.sum() == pytest.approx(1)
        assert counted[0] == (reads == 0).mean()
        assert (uniform >= 0).all()
        assert uniform.sum() <= 1 + 1e-9
        reach = edges[1:] * reads.mean() > 1
        assert (np.ceil(edges[1:] * reads.mean()) > np.ceil(edges[:-1] * reads.mean()))[reach].all()


def test_reads_at_random_are_drawn_as_what_uniform_reading_gives():
    reads = np.random.default_rng(0).poisson(0.7, 100_000)
    counted, uniform = shares_of_rows(reads, octaves([layer("x", reads)]))
    assert counted == pytest.approx(uniform, abs=0.01)


@given(READS)
def test_the_share_curve_ends_with_all_and_bends_towards_the_most_read_rows(reads):
    x, y = share_curve(reads)
    assert (x[-1], y[-1]) == (1.0, 1.0)
    assert y[0] == reads.max() / reads.sum()
    assert (y >= x - 1e-12).all()


def test_what_is_drawn_is_what_was_counted():
    reads = [0, 1, 1, 2, 9, 40]
    figure = table_reads_figure([layer("layer_01", reads)])

    left, right = figure.axes
    never, found, *_ = (patch.get_data() for patch in left.patches)
    assert never.values.tolist() == [1 / 6]
    mean = sum(reads) / 6
    for share, low, high in zip(found.values, found.edges, found.edges[1:], strict=False):
        assert share == sum(low <= n / mean < high for n in reads) / 6
    assert right.lines[0].get_ydata()[0] == 40 / 53
    assert left.get_xticklabels()[0].get_text() == "0"


def test_places_of_a_layer_share_its_panels_and_of_many_layers_some_are_drawn():
    two = [layer("layer_00_first", [1, 2]), layer("layer_00_second", [3, 3])]
    assert len(table_reads_figure(two).axes) == 2

    many = [layer(f"layer_{i:02d}", [1, 2, 3]) for i in range(MOST_LAYERS + 5)]
    figure = table_reads_figure(many)
    names = [axis.get_ylabel() for axis in figure.axes if axis.get_ylabel()]
    assert (len(names), names[0], names[-1]) == (MOST_LAYERS, "layer 00", "layer 16")
    assert f"{MOST_LAYERS} of {MOST_LAYERS + 5} layers" in figure.get_supxlabel()
    with pytest.raises(ValueError, match="no reads"):
        table_reads_figure([])


def test_what_was_written_is_read(tmp_path):
    assert read_table_reads(tmp_path) == []
    folder = tmp_path / FOLDER
    folder.mkdir()
    np.savez(folder / "reads.npz", layer_02=np.arange(5), model=np.arange(3))
    tables = {"layer": ["layer_02", "layer_02", "model"], "rows": [2, 3, 3]}
    pd.DataFrame(tables).to_csv(folder / "tables.csv", index=False)

    first, second = read_table_reads(tmp_path)

    assert (first.label, first.reads.tolist(), first.table_rows) == (
        "layer_02",
        [*range(5)],
        (2, 3),
    )
    assert (second.label, second.table_rows) == ("model", (3,))
