"""What the report advises first where planned trials have no result."""

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

from analysis.report.advice import advice
from analysis.report.answer import sweep_answer
from analysis.report.comparison_table import corrected_note
from analysis.scaling.comparison import ArchitectureComparison

NO_LAWS = ArchitectureComparison()


@pytest.mark.parametrize(
    ("states", "first"),
    [
        (
            ["waiting"] * 13 + ["running"],
            "Finish the sweep first: 14 planned trials of it without a result",
        ),
        (["running"], "when the sweep has ended: 1 planned trial without a result"),
    ],
)
def test_unfinished_trials_come_before_all_other_advice(runs, fits, states, first):
    answer = sweep_answer(runs, fits, NO_LAWS)
    excluded = pd.DataFrame({"state": states, "sweep": "half"})

    (only,) = advice(answer, fits, NO_LAWS, sweep="half", excluded=excluded)

    assert first in only
    assert "`memscale status half`" in only


@pytest.mark.parametrize(
    ("sweeps", "first"),
    [
        (
            ["b", "b"],
            "Finish sweep b first: 2 planned trials of it without a result. Submit the sweep file again, "
            "or see `memscale status b`.",
        ),
        (
            ["c", "b"],
            "Finish sweeps b and c first: 2 planned trials of them without a result. Submit the sweep "
            "files again, or see `memscale status b` and `memscale status c`.",
        ),
    ],
)
def test_of_several_sweeps_the_unfinished_ones_are_named(runs, fits, sweeps, first):
    answer = sweep_answer(runs, fits, NO_LAWS)
    excluded = pd.DataFrame({"state": ["waiting", "running", "failed"], "sweep": [*sweeps, "a"]})

    assert advice(answer, fits, NO_LAWS, sweep=None, excluded=excluded) == (first,)


def test_trials_that_failed_or_were_cancelled_are_not_waited_for(runs, fits):
    answer = sweep_answer(runs, fits, NO_LAWS)
    excluded = pd.DataFrame({"state": ["failed", "cancelled", "done"]})

    without = advice(answer, fits, NO_LAWS, sweep="s")

    assert advice(answer, fits, NO_LAWS, sweep="s", excluded=excluded) == without


@pytest.mark.parametrize(("n_sizes", "more"), [(3, ""), (4, "1 more size"), (5, "2 more sizes")])
def test_sizes_at_an_edge_beyond_three_are_counted(runs, fits, n_sizes, more):
    edge = SimpleNamespace(architecture="dense", size="d8", at_edge=("lr=1 is the largest of 2",))
    answer = sweep_answer(runs, fits, NO_LAWS)

    words = advice(answer, replace(fits, best=[edge] * n_sizes), NO_LAWS, sweep="s")

    (said,) = (one for one in words if one.startswith("Try values further out"))
    assert said.endswith(f"; so at {more})." if more else "largest of 2).")


def test_one_comparison_is_no_plural():
    assert "corrected for 1 comparison (Holm)" in corrected_note(1)
    assert "corrected for 2 comparisons (Holm)" in corrected_note(2)
