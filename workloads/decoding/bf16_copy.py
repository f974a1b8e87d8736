"""Copy of a model for decoding, with weights cast to bf16 once.

Autocast would cast them in every pass. A step reads every weight for a handful of tokens, so it
takes as long as reading them does, and casting them each time would take several times longer.
"""

import copy

import torch
from torch import nn

from workloads.layers.backbone.transformer import Transformer
from workloads.layers.memory.hash_memory import HashMemory
from workloads.layers.memory.product_keys import ProductKeyLookup
from workloads.layers.modules.linear import Head
from workloads.layers.modules.moe import Experts, Router


def bf16_copy(model: nn.Module) -> nn.Module:
    """Return a copy whose matrices are bf16, and tables read by signs; it shares all else.

    To be used under autocast: sums, norms and the residual stream stay in fp32. The sub-keys of
    product keys are rounded, too.
    """
    memo: dict[int, object] = {id(each): each for each in (*model.parameters(), *model.buffers())}
    for parameter in _matrices(model):
        cast = parameter.detach().to(torch.bfloat16)
        memo[id(parameter)] = nn.Parameter(cast, requires_grad=False)
    copied = copy.deepcopy(model, memo)
    if isinstance(copied, Transformer) and copied.head is None:
        # The table is read by row in fp32, and whole in bf16.
        vocab_size, d_model = copied.embedding.weight.shape
        with torch.device("meta"):
            copied.head = Head(d_model, vocab_size)
        cast = copied.embedding.weight.detach().to(torch.bfloat16)
        copied.head.weight = nn.Parameter(cast, requires_grad=False)
    return copied


def _matrices(model: nn.Module) -> list[nn.Parameter]:
    found: list[nn.Parameter] = []
    for module in model.modules():
        linear = isinstance(module, nn.Linear) and not isinstance(module, Router)
        if linear or isinstance(module, Experts):
            found += module.parameters(recurse=False)
        if isinstance(module, ProductKeyLookup):
            found.append(module.sub_keys)
        if isinstance(module, HashMemory) and module.table.is_whole:
            found.append(module.table.weight)
    return found
