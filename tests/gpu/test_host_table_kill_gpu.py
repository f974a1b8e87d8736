"""A killed trial with tables in host memory goes on in another process with the bits of one that went through."""

import pytest
import torch

from tests.unit.workloads.training.optimizer.test_host_table_kill import check

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]


def test_another_process_goes_on_bit_for_bit(tmp_path):
    check(tmp_path, "cuda")
