"""Steps timed in the process that `memscale plan` starts for it; what they took is not asserted."""

import pytest

from orchestrator.records.errors import ExperimentError
from orchestrator.sweep import registry

pytestmark = [pytest.mark.integration, pytest.mark.long]

DENSE = {"architecture": "dense", "d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 16}
REQUEST = {
    "models": [DENSE, {**DENSE, "d_ff": 32}],
    "train": {"tokens": 64, "batch_tokens": 32, "seq_len": 8, "lr": 0.01},
    "vocab_size": 11,
    "device": "cpu",
    "n_threads": 1,
    "ranks": 1,
    "micro_batch_tokens": None,
    "budget_s": 0.1,
}


def test_a_process_of_its_own_times_two_models_and_survives_a_mistake():
    with registry.step_timer() as timer:
        with pytest.raises(ExperimentError, match="could not be measured: .*d_ff"):
            timer.time({**REQUEST, "models": [{**DENSE, "d_ff": 0}]})
        answer = timer.time(REQUEST)

    first, second = answer["seconds"]
    assert len(first) == len(second) > 0
    assert min(*first, *second) > 0
    assert answer["device"]
