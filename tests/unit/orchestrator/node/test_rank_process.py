"""What a rank keeps of a GPU between two trials; the GPU is a stand-in."""

from types import SimpleNamespace

import pytest

from orchestrator.node import rank_process, worker


class Gpu:
    def __init__(self, *, reserved, left):
        self.reserved, self.left, self.calls = reserved, left, []

    def torch(self):
        cuda = SimpleNamespace(
            is_initialized=lambda: True,
            synchronize=lambda: None,
            manual_seed_all=lambda seed: self.calls.append(("seed", seed)),
            memory_reserved=lambda: self.reserved,
            empty_cache=self.empty,
            reset_peak_memory_stats=lambda: self.calls.append("peak"),
        )
        inner = SimpleNamespace(
            _cuda_clearCublasWorkspaces=lambda: self.calls.append("workspaces"),
            _host_emptyCache=lambda: self.calls.append("host"),
        )
        return SimpleNamespace(cuda=cuda, initial_seed=lambda: 7, _C=inner)

    def empty(self):
        assert not worker.between_trials, "its graphs know the addresses"
        self.reserved = self.left
        self.calls.append("empty")


@pytest.fixture
def kept(monkeypatch):
    between = {"step": object()}
    monkeypatch.setattr(worker, "between_trials", between)
    return between


def test_what_a_small_trial_has_stays(kept):
    gpu = Gpu(reserved=2**29, left=0)

    assert rank_process._reset_gpu(gpu.torch()) == 0
    assert kept
    assert gpu.calls == [("seed", 7)]


def test_what_a_large_trial_has_is_given_back(kept):
    gpu = Gpu(reserved=2**32, left=2**20)

    assert rank_process._reset_gpu(gpu.torch()) == 2**20
    assert not kept
    assert gpu.calls == [("seed", 7), "workspaces", "empty", "host", "peak"]


def test_what_a_trial_has_that_leaves_nothing_to_the_next_is_given_back(kept):
    kept.clear()
    gpu = Gpu(reserved=2**29, left=2**20)

    assert rank_process._reset_gpu(gpu.torch()) == 2**20
    assert gpu.calls == [("seed", 7), "workspaces", "empty", "host", "peak"]


def test_a_process_that_never_used_a_gpu_is_left_alone(kept):
    gpu = Gpu(reserved=2**32, left=0)
    torch = gpu.torch()
    torch.cuda.is_initialized = lambda: False

    assert rank_process._reset_gpu(torch) == 0
    assert rank_process._reset_gpu(None) == 0
    assert kept
    assert gpu.calls == []
