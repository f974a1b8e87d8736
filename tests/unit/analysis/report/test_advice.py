"""What the report advises first where planned trials have no result."""

import pandas as pd
import pytest

from analysis.report.advice import advice
from analysis.report.answer import sweep_answer
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
    excluded = pd.DataFrame({"state": states})

    (only,) = advice(answer, fits, NO_LAWS, sweep="half", excluded=excluded)

    assert first in only
    assert "`memscale status half`" in only


def test_trials_that_failed_or_were_cancelled_are_not_waited_for(runs, fits):
    answer = sweep_answer(runs, fits, NO_LAWS)
    excluded = pd.DataFrame({"state": ["failed", "cancelled", "done"]})

    without = advice(answer, fits, NO_LAWS, sweep="s")

    assert advice(answer, fits, NO_LAWS, sweep="s", excluded=excluded) == without
