"""FSDP2 for all parameters but the memory tables.

Each rank keeps a shard of every parameter, of its gradient and of its optimizer state. A block's
parameters are gathered when it runs, forward and again backward, and freed after it (ZeRO stage 3).
Where memory allows they stay gathered until its backward pass has ended (`keep_gathered`, ZeRO
stage 2). In its backward pass their gradients are reduce-scattered to the shards. What no block
owns (embedding, head, last norm, modules that several blocks read) is gathered when the model runs
and freed after its backward pass.

Types: parameters and gradients are fp32, and are gathered and summed in fp32. Gradients are not
divided, because losses are parts of a mean over the global batch already. Layers compute in bf16 by
the same autocast as replicated ones, whose bf16 copies of weights live as long as the gathered
weights do (`autocast_recompute.py`). So sharding changes the order of sums and nothing else.

Gradients are summed in every micro-batch, or each rank would keep whole ones between them.
Gathering is collective: ranks make the same number of passes.

Tables stay outside: `MemoryTable` has its own sharding, and its gradients are summed by
`gradient_allreduce.GradientAllReduce` or kept sparse.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from workloads.distributed.local_part import is_sharded
from workloads.distributed.process_group import RankGroup
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.memory.table import ModuleRef
from workloads.sharding.autocast_recompute import recompute_autocast_copies
from workloads.sharding.fsdp_collectives import Gather, Scatter


def shard_dense(
    model: nn.Module, world: RankGroup, *, here: torch.device, without: Iterable[nn.Parameter]
) -> None:
    """Replace every parameter but those of `without` by this rank's part.

    Every rank must call this.

    The model may lie on the meta device, then no device ever holds a whole parameter but while it
    runs.

    Raises:
        ValueError: If ranks share a GPU: they talk through gloo, which cannot send what it takes.
    """
    if here.type == "cuda" and dist.get_backend(world.group) == "gloo":
        raise ValueError(
            "dense_parameters: sharded needs a GPU for each rank, these share one; "
            "set resources.gpus to the number of ranks, or dense_parameters to replicated"
        )
    # Here, since it takes a while and only this needs it.
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
    from torch.distributed.tensor import Shard

    group = world.group or dist.group.WORLD
    assert group is not None
    mesh = DeviceMesh.from_group(group, here.type)
    left_out = {*without}
    # A number by itself has no dimension to be cut along; GradientAllReduce sums its gradient.
    left_out |= {p for p in model.parameters() if p.ndim == 0}
    blocks = _grouped(model, left_out)
    for module in (*blocks, model):
        fully_shard(
            module,
            mesh=mesh,
            # The backward pass begins with what the forward pass ended with.
            reshard_after_forward=module is not model,
            shard_placement_fn=lambda parameter: Shard(cut_along(parameter.shape, world.size)),
            ignored_params=left_out,
        )
    for block in blocks:
        recompute_autocast_copies(block, may_compile=here.type == "cuda")
    if isinstance(model, Transformer):
        # Head and loss are compiled together, apart from blocks (`training/step/compilation.py`).
        model.gathered_hidden = model.hidden
        register_fsdp_forward_method(model, "gathered_hidden")
    for module in _fsdp_modules(model):
        module.set_gradient_divide_factor(1.0)
        # Otherwise NCCL is asked for a sum of products with that factor, which gloo does not know.
        module.set_force_sum_reduction_for_comms(True)
        module.set_custom_all_gather(Gather())
        module.set_custom_reduce_scatter(Scatter())


def keep_gathered(model: nn.Module) -> None:
    """Keep blocks gathered from their forward pass until their backward pass has ended.

    A rank then receives 4 bytes per dense number and pass less, and holds them for all blocks at
    once. Passes within `only_forward` free each block all the same. The model has been through
    `shard_dense`.
    """
    cast(Any, model).keeps_gathered = True
    _reshard_blocks_after_forward(model, False)


def _reshard_blocks_after_forward(model: nn.Module, reshard: bool) -> None:
    for module in _fsdp_modules(model):
        if module is not model:
            module.set_reshard_after_forward(reshard, recurse=False)


def _fsdp_modules(model: nn.Module) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@contextmanager
def only_forward(model: nn.Module) -> Iterator[None]:
    """Within, passes are made that no backward pass follows.

    One block is gathered at a time, and at the end nothing is left so.
    """
    sharded = any(map(is_sharded, model.parameters()))
    # FSDP gathers into the same tensors ever after, and tensors born in inference mode are no good
    # for training.
    with torch.no_grad() if sharded else torch.inference_mode():
        kept = getattr(model, "keeps_gathered", False)
        if kept:
            # Captured steps hold their gathered blocks in memory of their own.
            _reshard_blocks_after_forward(model, True)
        try:
            yield
        finally:
            if kept:
                _reshard_blocks_after_forward(model, False)
            if sharded:
                root: Any = model
                root.reshard()


def _grouped(model: nn.Module, left_out: set[nn.Parameter]) -> list[nn.Module]:
    """Return the blocks that are gathered each by itself.

    Those whose parameters nobody uses outside of their pass.
    """
    own = [
        (block, {p for p in block.parameters() if p not in left_out})
        for block in getattr(model, "layers", ())
    ]
    used_by = Counter(parameter for _, parameters in own for parameter in parameters)
    lent = {
        parameter
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, ModuleRef)
        for parameter in value.module.parameters()
    }
    return [
        block
        for block, parameters in own
        if parameters and not any(used_by[p] > 1 or p in lent for p in parameters)
    ]


def cut_along(shape: Sequence[int], n_ranks: int) -> int:
    """Return the dimension along which a parameter is cut: the first one.

    Where that is shorter than there are ranks (the two halves of product keys), each rank with a
    part would hold much and the others nothing, so it is the first that divides evenly, which FSDP
    asks of any but the first.
    """
    if shape[0] < n_ranks:
        return next((dim for dim, n in enumerate(shape) if n and n % n_ranks == 0), 0)
    return 0
