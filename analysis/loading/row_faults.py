"""Rows that cannot count: impossible numbers, failed runs, one run twice."""

import re

import numpy as np
import pandas as pd

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
    r"|recall|secs?|seconds?|time|timestamp|hours?|curves?|grad|gradients?)\d*(_|$)"
    r"|(^|_)(date|updated)(_|$)"
)
"""In a header (`column_names.header`) whose column holds what came of a run, not what it was: the
end of a word, as in valloss. An update is no date."""

_SETTING = re.compile(
    r"(^|_)(accum|accumulate|accumulation|budget|checkpointing|clip|clipping|coef|coeff|coefficient"
    r"|decay|fn|function|lambda|limit|mask|penalty|reduction|smoothing|threshold|type|warmup"
    r"|weights?)(_|$)"
    r"|^((router_)?z_loss|aux_loss|max_grad_norm)$"
)
"""In a header that names a measurement, but whose column says how the run was made: grad_clip."""


def _is_measured(column: str) -> bool:
    """Whether a column holds what came of a run. Columns that `columns=` replaced do not count."""
    name = header(column)[0]
    measured = _MEASURED.search(name) and not _SETTING.search(name)
    return bool(measured) or column.endswith("(as it was)")


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
    key = [c for c in [*content, "run"] if c != "loss" and not _is_measured(c)]
    rest = frame.loc[good & ~frame["row"].isin(list(faults)), key].astype(str)
    for i in rest.index[rest.duplicated(keep="first")]:
        first = int(rest.index[(rest == rest.loc[i]).all(axis=1)][0])
        faults[int(i)] = (
            f"duplicate: run {frame.loc[i, 'run']} stands in row {first} already, "
            "with another result; keep the right one"
        )
