"""Parameters and tokens in millions or billions, in tables that do not say so."""

from pathlib import Path

import numpy as np
import pytest

import analysis

RESULTS = sorted((Path(__file__).parents[4] / "docs" / "results").glob("*.csv"))


def table(params=1.0, tokens=1.0, *, flops=False, **columns):
    """Return 12 runs with sizes in these units."""
    n, d = np.geomspace(7e7, 2.8e9, 12), np.tile([2e9, 2e10, 6e10], 4)
    cost = {"flops": 6 * n * d} if flops else {}
    return {
        "params": n / params,
        "tokens": d / tokens,
        "loss": 1.7 + 400 / n**0.34 + 400 / d**0.28,
        **cost,
        **columns,
    }


def of_units(runs):
    return [note for note in runs.notes if "too small" in note]


@pytest.mark.parametrize(
    ("units", "proposed"),
    [
        ((1e6, 1e9), "{'params': 1e6, 'tokens': 1e9} for 7e7 to 2.8e9 and 2e9 to 6e10"),
        ((1e6, 1e6), "{'params': 1e6, 'tokens': 1e6}"),
        ((1e6, 1), "{'params': 1e6}"),
        ((1, 1e9), "{'tokens': 1e9}"),
        ((1, 1e6), "{'tokens': 1e6}"),
    ],
)
def test_sizes_in_millions_or_billions_are_noted_with_the_units_to_give(units, proposed):
    (note,) = of_units(analysis.load(table(*units)))

    assert f"units={proposed}" in note


@pytest.mark.parametrize("tokens", [1, 1e6, 1e9])
def test_sizes_below_one_are_refused_unless_accepted(tokens):
    runs = table(1e9, tokens)

    with pytest.raises(ValueError, match=r"params \(0.07 to 2.8\).*units=\{'params': 1e9"):
        analysis.load(runs)
    assert len(analysis.load(runs, accept={"units"}).table) == 12


@pytest.mark.parametrize("units", [(1e6, 1e9), (1e9, 1e9), (1, 1e9), (1e6, 1)])
def test_flops_are_not_blamed_for_the_units_of_sizes(units):
    named = {n: u for n, u in zip(("params", "tokens"), units, strict=True) if u != 1}
    proposed = ", ".join(f"'{n}': 1e{np.log10(u):.0f}" for n, u in named.items())

    with pytest.raises(ValueError, match=rf"units=\{{{proposed}\}} for") as e:
        analysis.load(table(*units, flops=True))
    assert "FLOPs" not in str(e.value)
    assert of_units(analysis.load(table(*units, flops=True), units=named)) == []


def test_active_and_total_parameters_have_one_unit():
    runs = table(1e9, 1e9)

    with pytest.raises(ValueError, match="'params': 1e9, 'active_params': 1e9, 'tokens': 1e9"):
        analysis.load({**runs, "active_params": runs["params"] / 4})


def test_tokens_alone_have_units_too():
    """A table without parameters ended in a KeyError."""
    runs = analysis.load({"tokens": [2.0, 4.0, 8.0], "loss": [3.0, 2.5, 2.2]}, accept={"units"})

    assert "units={'tokens': 1e9} for 2e9 to 8e9" in of_units(runs)[0]


def test_a_unit_that_is_still_too_small_is_replaced():
    runs = table(1e9)

    (note,) = of_units(analysis.load(runs, units={"params": 1e3}))
    assert "units={'params': 1e9} for 7e7 to 2.8e9" in note


def test_small_models_and_other_data_are_no_mistake():
    tiny = {"params": [5e3, 2e4, 8e4], "tokens": [1e6, 1e6, 4e6], "loss": [5.0, 4.5, 4.0]}
    rows = {"Training Dataset Size": np.geomspace(1e2, 1e6, 9), "loss": np.geomspace(3, 1, 9)}

    assert of_units(analysis.load(tiny)) == of_units(analysis.load(rows)) == []
    assert of_units(analysis.load(table())) == of_units(analysis.load(table(flops=True))) == []
    assert of_units(analysis.load(table(1e6, 1e9), accept={"small"})) == []


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_no_result_of_ours_is_doubted(path):
    assert of_units(analysis.load(path)) == []
