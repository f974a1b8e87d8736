"""Recomputation of autocast copies of weights in the backward pass.

Under autocast a product is made with a bf16 copy of its weight, and autograd keeps the copy until
the backward pass. Of weights that are gathered for one block at a time that would be the larger
part of what a rank holds: 2 bytes for every number of every block. Since the weight is gathered
again for the backward pass, the copy can be, too: it has the same bits, and costs one more pass
over the weight. Compiled blocks keep theirs all the same, because their compiler chooses what is
saved, and prefers the smaller copy; unless activations are checkpointed.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

Kept = Tensor | Callable[[], Tensor]


def recompute_autocast_copies(block: nn.Module, *, may_compile: bool = False) -> None:
    """Keep no autocast copies of a block's weights between its forward and backward pass.

    Args:
        block: Whose weights.
        may_compile: Whether it may run compiled, as on a GPU.
    """
    entered = ExitStack()
    hooks: tuple[Callable[..., Any], Callable[..., Any]] = kept, again
    if may_compile:
        # They run while a compiled block does, and torch would compile them for each shape.
        disable: Any = torch.compiler.disable
        hooks = disable(kept), disable(again)

    def begin(*_: Any) -> None:
        entered.enter_context(torch.autograd.graph.saved_tensors_hooks(*hooks))

    def end(*_: Any) -> None:
        entered.close()
        # It holds the copies until the model's whole forward pass has ended.
        torch.clear_autocast_cache()

    block.register_forward_pre_hook(begin)
    block.register_forward_hook(end, always_call=True)


def kept(saved: Tensor) -> Kept:
    """Return what is kept of a tensor that autograd saves.

    How to make it, if it is all of a weight in another type.
    """
    copy = saved if saved._base is None else saved._base
    weight = _copied(copy)
    if weight is None or saved.numel() != copy.numel():
        return saved.detach()  # itself, if it is an output, would keep what made it, which keeps it
    # Only what says how it lies: the tensor itself would keep the copy.
    dtype, size, stride = copy.dtype, saved.size(), saved.stride()
    return lambda: weight.detach().to(dtype).as_strided(size, stride)


def again(kept: Kept) -> Tensor:
    """Return the tensor that was saved."""
    return kept if isinstance(kept, Tensor) else kept()


def _copied(copy: Tensor) -> Tensor | None:
    """Return the parameter that this is a copy of in another type, contiguous as it is.

    None if it is none.
    """
    made_by = copy.grad_fn
    if made_by is None or made_by.name() != "ToCopyBackward0" or not copy.is_contiguous():
        return None
    source = made_by.next_functions[0][0]
    weight = getattr(source, "variable", None)  # of a leaf only
    if not isinstance(weight, nn.Parameter) or not weight.is_contiguous():
        return None
    if weight.device != copy.device:
        return None
    return weight
