"""torch.compile of a training pass: a graph per kind of block, one for the loss.

Blocks are compiled one by one rather than the model as a whole. Layers of one kind share a graph,
so compiling takes as long for 24 layers as for one, and all models of a process share it too.
Evaluation, decoding and steps that record usage run uncompiled: they are few, and each would cost
another compilation.
"""

import os
import types
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from workloads.layers.backbone.transformer import Transformer
from workloads.layers.context import Context
from workloads.layers.modules.usage_stats import Usage

_GRAPHS_PER_KIND = 16
"""Graphs that dynamo may keep of one kind: shapes, precisions. Beyond it runs uncompiled."""

INDUCTOR_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
"""Environment variable: where Inductor keeps what it compiled."""

INDUCTOR_OPTIONS: dict[str, Any] = {"deterministic": True}
"""Options of every graph. By default Inductor times a reduction with several block sizes and keeps
the fastest, so each process that compiles may add in another order. In this mode it chooses by
rule. Pointwise kernels, whose blocks change no bit, are still timed."""

_compiled: dict[object, Callable[..., Tensor]] = {}
"""Compiled functions by what they were made of and by kind, for all models of this process."""


def compile_training(model: nn.Module) -> None:
    """Compile the blocks of a `Transformer` for training passes without a cache.

    A block that the compiler cannot translate runs as it is written, and torch logs why.
    """
    if not isinstance(model, Transformer):
        return
    torch._dynamo.config.suppress_errors = True
    # Views that a graph returns are made from their sizes and strides. By default they are replayed
    # from a record, which torch 2.11 reads after it is freed when the graph comes from a cache
    # (pytorch#185630). A trial ended with "shape '[140482305721423, ...]' is invalid".
    functorch: Any = import_module("torch._functorch.config")
    functorch.view_replay_for_aliased_outputs = False
    torch._dynamo.config.recompile_limit = max(
        _GRAPHS_PER_KIND, torch._dynamo.config.recompile_limit
    )
    for layer in model.layers:
        records = any(isinstance(module, Usage) for module in layer.modules())
        dispatch = _in_training(type(layer).forward, _kind(layer), records=records)
        layer.forward = types.MethodType(dispatch, layer)


def compiled_loss(
    model: nn.Module, tokens: Int64[Tensor, "batch seq"], targets: Int64[Tensor, "batch seq"]
) -> Float[Tensor, ""]:
    """Return the summed cross-entropy of a model's logits, nats, with head and loss in one graph.

    The compiler fuses the casts and the softmax, so the logits exist in the precision of the
    products only.
    """
    assert isinstance(model, Transformer)
    x = (model.gathered_hidden or model.hidden)(tokens)
    kind = ("loss", *_kind(model.norm), model.head is None)
    return _compile(_head_loss, kind)(model, x, targets)


def _head_loss(model: Transformer, x: Tensor, targets: Tensor) -> Tensor:
    logits = model.logits(x).float().flatten(0, 1)
    return functional.cross_entropy(logits, targets.flatten(), reduction="sum")


def _in_training(
    forward: Callable[..., Tensor], kind: tuple[object, ...], *, records: bool
) -> Callable[..., Tensor]:
    """Return a block's forward that is compiled in training passes, and plain in all others.

    A block of which no part `records` its use is compiled in passes that record, too.
    """
    compiled = _compile(forward, kind)

    def dispatch(self: nn.Module, x: Tensor, context: Context) -> Tensor:
        if context.record_usage and not records:
            context = replace(context, record_usage=False)
        plain = context.cache is not None or context.record_usage or not torch.is_grad_enabled()
        return forward(self, x, context) if plain else compiled(self, x, context)

    return dispatch


def _compile(function: Callable[..., Tensor], kind: tuple[object, ...]) -> Callable[..., Tensor]:
    key = (function, *kind)
    if key not in _compiled:
        # Dynamo keeps its graphs, and counts them against its limit, by code object. With a copy
        # for each kind, kinds neither evict nor guard against each other.
        copy = types.FunctionType(
            function.__code__.replace(),
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        _compiled[key] = torch.compile(copy, dynamic=False, options=INDUCTOR_OPTIONS)
    return _compiled[key]


def _kind(module: nn.Module) -> tuple[object, ...]:
    """Return what two modules must share to be compiled to one graph: structure and shapes."""
    return (
        repr(module),
        tuple((name, tuple(value.shape)) for name, value in module.named_parameters()),
    )


def share_compile_cache(folder: Path, *, threads: int) -> None:
    """Keep compiled kernels in `folder`, for all trials of this and later sweeps.

    Args:
        folder: Made where it is missing.
        threads: Processes that may compile at once.
    """
    # By name: importing Inductor takes seconds, and a CPU never compiles.
    inductor: Any = import_module("torch._inductor.config")
    inductor_folders: Any = import_module("torch._inductor.runtime.cache_dir_utils")
    # Importing Inductor sets the variable to its default, which therefore is nobody's wish.
    if os.environ.get(INDUCTOR_FOLDER) == inductor_folders.default_cache_dir():
        del os.environ[INDUCTOR_FOLDER]
    for variable, name in ((INDUCTOR_FOLDER, "inductor"), ("TRITON_CACHE_DIR", "triton")):
        os.environ.setdefault(variable, str(folder / name))
    inductor.compile_threads = max(1, threads)
