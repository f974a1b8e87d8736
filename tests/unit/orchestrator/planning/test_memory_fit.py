from types import SimpleNamespace

import psutil
import pytest

from orchestrator.planning import memory_fit
from orchestrator.planning.pricing import make_plan
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.sweep.load import load_sweep

SWEEP = """
name: small
data: {{source: biographies, n_people: 100, style: compact}}
train: {{tokens: 67_108_864, batch_tokens: {batch_tokens}, seq_len: 256, lr: 1.0e-2{more}}}
model: {model}
resources: {{gpus: 0}}
"""
DENSE = "{architecture: dense, preset: 1m}"
TABLE = "{architecture: memory_plus, preset: 1m, n_keys: 64}"


def planned(folder, batch_tokens, *, model=DENSE, more=""):
    file = folder / "small.yaml"
    file.write_text(SWEEP.format(batch_tokens=batch_tokens, model=model, more=more), "utf-8")
    return make_plan(load_sweep(file), SweepDir(folder / "runs" / "small").snapshot(), ())


@pytest.mark.parametrize(
    ("model", "more"),
    [(DENSE, ""), (TABLE, ""), (TABLE, ", table_optimizer: deferred_adamw")],
)
def test_a_trial_is_as_large_as_what_no_micro_batch_changes(tmp_path, monkeypatch, model, more):
    """Of activations and reads, a smaller micro-batch holds as little as one likes."""
    small, large = (planned(tmp_path, n, model=model, more=more) for n in (1_024, 4_194_304))
    numbers, of_large = (plan.trials[0].spec.accounting for plan in (small, large))
    state = numbers["model_state_bytes"]
    assert of_large["model_state_bytes"] == state
    assert of_large["peak_memory_bytes"] > 100 * state

    for memory, fits in ((1.01 * state, True), (0.99 * state, False)):
        there = SimpleNamespace(total=memory)
        monkeypatch.setattr(psutil, "virtual_memory", lambda there=there: there)
        monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(total=0))
        for plan in (small, large):
            assert (memory_fit.fits_not_here(plan) == []) == fits
