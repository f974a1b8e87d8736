"""Model FLOPs utilisation of a sweep: its FLOPs over the peak of the GPUs held."""

import pandas as pd

_PEAK, _GPUS = "device/peak_bf16_flops_per_s", "device/gpus"
_SECONDS = ("time/train_s", "time/evaluate_s", "time/data_s")
_MORE_SECONDS = ("time/start_s", "time/benchmarks_s")
"""Of trials that have them: without benchmarks, or of earlier versions, they do not."""
_NEEDED = ("training_flops", _PEAK, _GPUS, *_SECONDS)


def device_share(table: pd.DataFrame) -> str | None:
    """Return one sentence about the trials that ran on GPUs, None if none says that it did.

    The share is model FLOPs utilisation over the whole sweep: training FLOPs of its trials over
    seconds times GPUs held times the data sheet's bf16 peak. The seconds are those of starting,
    data, training, evaluation and benchmarks; waiting and lost attempts are not among them. A trial
    on a quarter of a GPU holds a quarter.

    Args:
        table: Of `analysis.load`, a row per trial.
    """
    if not set(_NEEDED) <= set(table.columns):
        return None
    numbers = table[[*_NEEDED]].apply(pd.to_numeric, errors="coerce").dropna()
    more = table.reindex(index=numbers.index, columns=[*_MORE_SECONDS])
    more_s = more.apply(pd.to_numeric, errors="coerce").sum(axis=1)
    held_s = (numbers[[*_SECONDS]].sum(axis=1) + more_s) * numbers[_GPUS]
    possible = float((held_s * numbers[_PEAK]).sum())
    if not possible:
        return None
    share = float(numbers["training_flops"].sum()) / possible
    n, others = len(numbers), len(table) - len(numbers)
    text = (
        f"Share of the GPUs: {n} {'trial' if n == 1 else 'trials'} used {share:.2g} of the bf16 "
        f"peak of {held_s.sum() / 3600:.3g} GPU-hours (training FLOPs, causal attention half)"
    )
    return f"{text}; {others} did not record it" if others else text
