import os

import pytest
import torch
from torch.nn.attention import SDPBackend

from orchestrator.node.hardware import gpu_environment
from workloads.training import device


def test_a_run_leaves_torchs_settings_as_it_found_them():
    def settings() -> tuple[object, ...]:
        return (
            torch.get_num_threads(),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        )

    before = settings()
    with device.numerics(torch.device("cpu"), n_threads=1, bf16=False):
        assert settings() == (1, "highest", True, False)

    assert settings() == before


@pytest.mark.parametrize(("before", "after"), [(None, ":4096:8"), (":16:8", ":16:8")])
def test_cublas_gets_a_fixed_workspace_unless_the_user_chose_one(monkeypatch, before, after):
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", before or "")  # so it is put back afterwards
    if not before:
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    of_an_attempt = {**os.environ, **gpu_environment(("0",))}["CUBLAS_WORKSPACE_CONFIG"]

    with device.numerics(torch.device("cuda", 0), n_threads=1, bf16=True):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == of_an_attempt == after


def test_attention_of_many_shapes_asks_cudnn_for_no_plan():
    def order() -> list[int]:
        return list(torch._C._get_sdp_priority_order())

    before = order()
    with device.varying_shapes(torch.device("cpu")):
        assert order() == before
    with device.varying_shapes(torch.device("cuda", 0)):
        flash, cudnn = SDPBackend.FLASH_ATTENTION.value, SDPBackend.CUDNN_ATTENTION.value
        assert order()[0] == flash
        assert order().index(flash) < order().index(cudnn)

    assert order() == before


def test_bf16_is_for_gpus_unless_asked_for():
    cpu = torch.device("cpu")
    assert not device.uses_bf16("auto", cpu)
    assert not device.uses_bf16("fp32", cpu)
    assert device.uses_bf16("bf16", cpu)
    with device.autocast(bf16=True, device=cpu):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


def test_devices_that_are_not_there_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    assert device.pick("auto", rank=3) == torch.device("cpu")
    with pytest.raises(ValueError, match="torch sees no GPU"):
        device.pick("cuda", rank=0)
    with pytest.raises(ValueError, match="must be auto, cpu or cuda, got 'gpu'"):
        device.pick("gpu", rank=0)


def test_ranks_take_the_visible_gpus_in_turn(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    assert [device.pick("auto", rank=rank).index for rank in range(4)] == [0, 1, 0, 1]


def test_draws_follow_the_seed():
    drawn = []
    for value in (1, 2**63 + 5, 1):
        device.seed(value, torch.device("cpu"))
        drawn.append(torch.rand(3).tolist())

    assert drawn[0] == drawn[2] != drawn[1]
