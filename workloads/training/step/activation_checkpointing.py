"""Activation checkpointing: blocks keep only their inputs and recompute the rest.

Source: Chen et al. 2016 (arXiv 1604.06174), with a checkpoint at every block. The second run makes
the same numbers: nothing in a training pass is drawn at random, and whatever a pass leaves behind
(running statistics, counters of use, losses that layers add) is left by the first run only.

It goes around compiled blocks (`compilation.py`), whose compiled code then runs again, and inside
the hooks by which FSDP gathers a block, so that its weights are there for the second run.
"""

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from workloads.layers.backbone.transformer import Transformer
from workloads.layers.context import Context


def checkpoint_blocks(model: nn.Module) -> None:
    """Let the blocks of a `Transformer` keep their inputs alone, in training passes."""
    if not isinstance(model, Transformer):
        return
    for layer in model.layers:
        layer.forward = types.MethodType(_checkpointed(layer), layer)


def _checkpointed(layer: nn.Module) -> Callable[[nn.Module, Tensor, Context], Tensor]:
    inner: Callable[[Tensor, Context], Tensor] = layer.forward  # compiled, where it is

    def forward(self: nn.Module, x: Tensor, context: Context) -> Tensor:
        if context.cache is not None or not torch.is_grad_enabled():
            return inner(x, context)
        before = context.forward_state.copy()
        is_first = True

        def run(x: Tensor) -> Tensor:
            nonlocal is_first
            if is_first:
                is_first = False
                return inner(x, context)
            # What later layers have shared since is not to be seen, nor losses added twice.
            with _buffers_as_they_are(self):
                return inner(x, replace(context, forward_state=before.copy()))

        # The state of random generators cannot be read while a CUDA graph is captured.
        output: Tensor = checkpoint(run, x, use_reentrant=False, preserve_rng_state=False)
        return output

    return forward


@contextmanager
def _buffers_as_they_are(module: nn.Module) -> Iterator[None]:
    """Undo what is written to a module's buffers within, also where it ends early."""
    buffers = [*module.buffers()]
    before = [buffer.detach().clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)
