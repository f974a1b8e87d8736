"""Rows that cannot count: impossible numbers, failed runs, one run twice."""

import re

import numpy as np
import pandas as pd

from analysis.formatting import some_of
from analysis.loading.column_names import header, words

OLD_ROW = "row (as it was)"
SIZES = ("params", "tokens", "flops", "active_params", "total_params", "experts")
POSITIVE = ("loss", *SIZES)

BAD_STATES = frozenset(
    words(
        "failed failure crashed crash killed cancelled canceled diverged nan error oom running "
        "pending timeout preempted"
    )
)
"""Of runs that are not finished, in lower case."""

_MEASURED = re.compile(
    r"(loss|losses|nll|entropy|bpb|bpc|per_byte|ppl|perplexity|acc|accuracy|err|errors?|scores?"
    r"|recall|secs?|seconds?|time|hours?|curves?|grad|gradients?|gradnorm)\d*(_|$)"
)
"""In a header (`column_names.header`) whose column holds what came of a run, not what it was: the
end of a word, as in valloss."""

_WHEN = re.compile(r"timestamp(_|$)|(^|_)(date|updated|last_update)(_|$)")
"""In a header whose column says when a run was, which a second result may share with others."""

_SETTING = re.compile(
    r"^(?!.*_loss$).*(?<!no)(?<!before)(?<!after)(?<!without)"
    r"(^|_)(accum|accumulate|accumulation|budget|checkpointing|clip|clipping|coef|coeff|coefficient"
    r"|decay|fn|function|lambda|limit|mask|penalty|reduction|smoothing|threshold|type|warmup"
    r"|weights?)(_|$)"
    r"|^((router_)?z_loss|aux_loss|max_grad_norm)$"
)
"""In a header that names a measurement, but whose column says how the run was made: grad_clip. A
penalty_loss and a grad_norm_before_clip are measured."""


def _is_measured(column: str, values: pd.Series, runs: pd.Series) -> bool:
    """Whether a column holds what came of a run. Columns that `columns=` replaced do not count.

    Its name says it, unless its values are those of a grid.

    Args:
        column: Its name.
        values: (n,) its cells as text.
        runs: (n,) names of runs.
    """
    name = header(column)[0]
    if _WHEN.search(name) or column.endswith("(as it was)"):
        return True
    named = _MEASURED.search(name) and not _SETTING.search(name)
    return bool(named) and not _is_grid(values, runs)


def _is_grid(values: pd.Series, runs: pd.Series) -> bool:
    """Whether runs of every name take the same values, or some of them; no measurement does."""
    taken = [set(of_name) for _, of_name in values.groupby(runs)]
    taken = [found for found in taken if len(found) > 1]
    return len(taken) > 1 and all(found <= max(taken, key=len) for found in taken)


def refuse_impossible(frame: pd.DataFrame, faults: dict[int, str]) -> None:
    """Give a reason to every row whose state or numbers cannot count."""
    if "status" in frame:
        for i, state in enumerate(frame["status"]):
            word = str(state).strip()
            if word.lower() in BAD_STATES:
                reason = (
                    f"status is {word!r}: not a finished run; run it again, or correct the status"
                )
                faults.setdefault(i, reason)
    for name in (n for n in POSITIVE if n in frame):
        values = frame[name].to_numpy(dtype=np.float64)
        diverged = " (diverged)" if name == "loss" else ""
        for i in np.flatnonzero(np.isinf(values)).tolist():
            reason = f"not finite: {name} is {values[i]}{diverged}; run it again, or leave it out"
            faults.setdefault(i, reason)
        for i in np.flatnonzero(values <= 0).tolist():
            reason = f"impossible: {name} is {values[i]:g}; it must be positive, correct the cell"
            faults.setdefault(i, reason)
        if name in {"params", "tokens", "loss"} and np.isfinite(values).any():
            diverged = " (a run that diverged or was not evaluated)" if name == "loss" else ""
            for i in np.flatnonzero(np.isnan(values)).tolist():
                reason = f"missing: no value of {name}{diverged}; fill the cell, or run it again"
                faults.setdefault(i, reason)


def refuse_repeated(frame: pd.DataFrame, faults: dict[int, str]) -> None:
    """Give a reason to every row that repeats an earlier one."""
    good = ~frame["row"].isin(list(faults))
    labels = {"row", OLD_ROW, "run", "trial_id", "Unnamed: 0", "index"}
    content = [c for c in frame.columns if c not in labels]
    if "loss" in frame and any(c in frame for c in SIZES):
        cells = frame.loc[good, content].astype(str)
        for i in cells.index[cells.duplicated(keep="first")]:
            first = int(cells.index[(cells == cells.loc[i]).all(axis=1)][0])
            faults[int(i)] = (
                f"duplicate of row {first}: every cell is the same; "
                "leave one out, or give seeds a column"
            )
    if "run" not in frame:
        return
    # One run at one size twice, with different results: nobody can tell which is right.
    # What else differs makes two runs of it: a learning rate, under a name that is the model's.
    rest = frame[good & ~frame["row"].isin(list(faults))].astype(str)
    measured = [c for c in content if c == "loss" or _is_measured(c, rest[c], rest["run"])]
    settings = rest[[c for c in [*content, "run"] if c not in measured]]
    for i in rest.index[settings.duplicated(keep="first")]:
        first = int(rest.index[(settings == settings.loc[i]).all(axis=1)][0])
        differ = [c for c in measured if rest.loc[i, c] != rest.loc[first, c]]
        result = f"another result ({some_of(differ)})" if differ else "the same result"
        advice = ", or rename a setting among these columns" if {*differ} - {"loss"} else ""
        faults[int(i)] = (
            f"duplicate: run {frame.loc[i, 'run']} stands in row {first} already, "
            f"with {result}; keep the right one{advice}"
        )
