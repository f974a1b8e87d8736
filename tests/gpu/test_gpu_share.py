"""A trial's share of a GPU holds for real: who takes more runs out of memory itself."""

import pytest
import torch

from orchestrator.node import worker
from orchestrator.node.exception_outcome import exception_outcome
from orchestrator.records.rank_registry import RankRequest
from orchestrator.records.trial_spec import GPU_PEAK, Outcome

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]


@pytest.fixture
def request_of_a_tenth():
    yield RankRequest(
        trial_path="t",
        attempt=1,
        rank=0,
        ranks=1,
        cpus=1,
        gpus=("0",),
        cache="c",
        gpu_memory_share=0.1,
    )
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_more_than_the_share_is_out_of_memory_and_less_is_measured(request_of_a_tenth):
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    worker.cap_gpu_memory(request_of_a_tenth)

    held = torch.empty(int(0.05 * total), dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(int(0.08 * total), dtype=torch.uint8, device="cuda")

    assert exception_outcome(caught.value) is Outcome.GPU_OOM
    peak = worker.gpu_memory_peak(request_of_a_tenth)[GPU_PEAK]
    assert held.nbytes <= peak <= 0.1 * total
