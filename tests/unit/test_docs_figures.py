"""docs/figures.py: what stands where in the figures of `memory_scaling`, by the CSVs themselves."""

import importlib
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def figures():
    """Yield the script, which has others beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        yield importlib.import_module("figures")


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def marks(panel, colour):
    """Return the places of marks, those of means."""
    lines = [line for line in panel.get_lines() if line.get_color() == colour]
    marked = [line for line in lines if line.get_marker() not in ("", "None", None)]
    return {(float(x), float(y)) for line in marked for x, y in zip(*line.get_data(), strict=True)}


@pytest.mark.parametrize("x", ["memory_params", "total_params"])
def test_marks_are_means_over_seeds(figures, x):
    runs = pd.read_csv(DOCS / "results" / "memory_scaling_text_3m.csv")
    plain = runs[runs["model.output_init"].isna() & (runs["architecture"] == "memory_plus")]
    means = plain.groupby(x)["valid/bits_per_byte"].mean()

    panel = figures._memory_scaling(x).axes[5]

    assert panel.get_title() == "text, 3m base"
    found = marks(panel, figures.COLOURS["memory_plus"])
    assert set(means.items()) <= found
    # Beside them two with smaller output matrices, and one of 2^22 rows.
    assert len(found) == len(means) + 3
    low, high = panel.get_xlim()
    assert all(low < place < high for place, _ in found)


def test_dense_has_a_place_among_all_parameters_and_none_among_those_of_a_memory(figures):
    black = figures.COLOURS["dense"]

    assert not marks(figures._memory_scaling("memory_params").axes[0], black)
    assert {x for x, _ in marks(figures._memory_scaling("total_params").axes[0], black)} == {
        1_393_280
    }


def test_means_of_seconds_are_of_one_kind_of_card_and_are_not_joined(figures):
    runs = pd.read_csv(DOCS / "results" / "memory_scaling_text_10m.csv")
    one = runs[(runs["architecture"] == "memory_plus") & (runs["model.n_keys"] == 512)]
    assert one["device"].nunique() == 2

    panel = figures._memory_scaling("train_seconds").axes[6]

    assert panel.get_title() == "text, 10m base"
    colour = figures.COLOURS["memory_plus"]
    for device, trials in one.groupby("device"):
        place = (trials["train_seconds"].mean(), trials["valid/bits_per_byte"].mean())
        (line,) = [
            line
            for line in panel.get_lines()
            if line.get_color() == colour and tuple(line.get_xydata()[0]) == pytest.approx(place)
        ]
        hollow = line.get_markerfacecolor() == "white"
        assert hollow == ("H200" in device)
    assert all(
        line.get_linestyle() == "None" for line in panel.get_lines() if line.get_color() == colour
    )
