"""Checkpointed blocks beside plain ones: the same bits, and less memory."""

import weakref
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from orchestrator.sweep import registry
from workloads.architectures import dense
from workloads.layers.modules.init import initialise
from workloads.training.config import TrainConfig
from workloads.training.memory_estimate.peak_memory import checkpointed_activations
from workloads.training.step import compilation
from workloads.training.step.activation_checkpointing import checkpoint_blocks
from workloads.training.step.train_step import TrainStep

VOCAB = 64
TRAIN = TrainConfig(tokens=256, batch_tokens=64, seq_len=16, lr=0.01)
WINDOWS = torch.randint(VOCAB, (4, 17), generator=torch.Generator().manual_seed(0))


def step_of(name, *, checkpointing, train=TRAIN, **changes):
    module = registry.architecture(name)
    model = module.Config(**{**module.PRESETS["d16"], **changes}).build(VOCAB)
    initialise(model, 0)
    return TrainStep(
        model.train(),
        train,
        passes=2,
        autocast=nullcontext,
        activation_checkpointing=checkpointing,
    )


def assert_same_training(plain, checkpointed):
    """Two steps of two micro-batches leave the same losses, parameters, buffers and statistics."""
    for _ in range(2):
        expected, found = (step(WINDOWS, lr=0.01) for step in (plain, checkpointed))
        assert {n: v.item() for n, v in found.items()} == {n: v.item() for n, v in expected.items()}
    for (key, value), (_, other) in zip(
        plain.model.state_dict().items(), checkpointed.model.state_dict().items(), strict=True
    ):
        assert torch.equal(value, other), key
    assert plain.model.statistics() == checkpointed.model.statistics()


@pytest.mark.parametrize("name", registry.architectures())
def test_checkpointed_steps_make_the_same_bits(name):
    assert_same_training(*(step_of(name, checkpointing=way) for way in (False, True)))


@pytest.mark.parametrize(
    ("name", "changes"),
    [("memory", {"query_batch_norm": True}), ("engram", {}), ("memoryformer", {})],
)
def test_running_statistics_and_deferred_gradients_count_the_first_run_only(name, changes):
    lazy = replace(TRAIN, table_optimizer="lazy_adamw")
    assert_same_training(
        *(step_of(name, checkpointing=way, train=lazy, **changes) for way in (False, True))
    )


class Alive(TorchDispatchMode):
    """Keeps an eye on the memory of every tensor that is made within."""

    def __init__(self):
        super().__init__()
        self.storages = weakref.WeakValueDictionary()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.storages[storage.data_ptr()] = storage
        return made

    def n_bytes(self, *, without):
        """Return the bytes still held, but for those of some tensors."""
        known = {tensor.untyped_storage().data_ptr() for tensor in without}
        return sum(s.nbytes() for place, s in self.storages.items() if place not in known)


def kept_bytes(*, checkpointing, n_layers):
    """Return what a forward pass holds until its backward pass."""
    model = step_of("dense", checkpointing=checkpointing, n_layers=n_layers).model
    model.recording_usage = False
    with Alive() as alive:
        logits = model(WINDOWS[:, :-1])
    assert logits.requires_grad
    return alive.n_bytes(without=model.parameters())


def test_a_further_block_keeps_its_input_alone():
    plain, checkpointed = (
        kept_bytes(checkpointing=way, n_layers=6) - kept_bytes(checkpointing=way, n_layers=4)
        for way in (False, True)
    )
    stream = 4 * WINDOWS[:, 1:].numel() * 16

    assert checkpointed == 2 * stream
    assert plain > 5 * checkpointed


def test_the_estimate_is_what_a_pass_keeps_and_the_block_that_runs_again():
    config = dense.Config(**{**dense.PRESETS["d16"], "n_layers": 6})
    n_tokens = WINDOWS[:, 1:].numel()
    plain, checkpointed = (
        n_tokens * estimate(config, VOCAB, 16, precision="fp32")
        for estimate in (dense.Config.activation_bytes_per_token, checkpointed_activations)
    )
    kept = kept_bytes(checkpointing=True, n_layers=6)
    # The loss is not in the pass: it keeps probabilities of fp32.
    kept += 4 * n_tokens * VOCAB

    assert kept < checkpointed < kept + plain / 6


def test_compiled_blocks_run_again_for_the_backward_pass(monkeypatch):
    """Traced and differentiated, but not compiled to machine code."""
    runs = []

    def backend(graph, inputs):
        compiled = torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

        def run(*arguments):
            runs.append(graph)
            return compiled(*arguments)

        return run

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    monkeypatch.setattr(compilation, "INDUCTOR_OPTIONS", None)  # other backends refuse them
    monkeypatch.setattr(compilation, "_compiled", {})
    plain = step_of("memory_plus", checkpointing=False)
    compiled = step_of("memory_plus", checkpointing=False)
    compilation.compile_training(compiled.model)
    checkpoint_blocks(compiled.model)
    for step in (plain, compiled):
        step.model.recording_usage = False
    expected, found = (step(WINDOWS, lr=0.01) for step in (plain, compiled))
    torch._dynamo.reset()

    assert len(runs) == 2 * 2 * len(compiled.model.layers)  # twice in each of two micro-batches
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name)
    for key, value in plain.model.state_dict().items():
        torch.testing.assert_close(compiled.model.state_dict()[key], value, msg=key)
