"""All-attention by torch's fused attention kernels.

Never a score in memory, no vector repeated per sequence.

Two calls, causal attention to the positions and full attention to the persistent vectors, each with
the logarithm of its weights' sum, are merged into the one softmax over both: `lse = log(exp(lse_1)
+ exp(lse_2))` and `output = sum of exp(lse_i - lse) output_i`. A fused backward pass needs the
output and the lse of the softmax only to know the weights and the mean gradient; given the merged
ones, the backward pass of each call is that of the joint softmax, exactly.

The public attention function returns no lse, so torch's internal operations are called, those that
it calls itself. `torch.compile` sees one operation: of an `autograd.Function` in its place, dynamo
(torch 2.11) lost what the forward pass kept, and made gradients of zero without a word.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from workloads.kernels.custom_op import register_op

_aten = torch.ops.aten


def applies(query: Tensor, key: Tensor) -> bool:
    """Return whether there are kernels for these.

    A whole sequence, on a CPU, or on CUDA in a type that has them.
    """
    if query.shape[2] != key.shape[2] or query.shape[-1] > 256:
        return False
    if query.device.type == "cpu":
        return True
    return query.is_cuda and query.dtype in (torch.float32, torch.bfloat16, torch.float16)


def all_attention(
    query: Float[Tensor, "batch heads seq d_head"],
    key: Float[Tensor, "batch heads seq d_head"],
    value: Float[Tensor, "batch heads seq d_head"],
    persistent_query: Float[Tensor, "batch heads seq d_head"],
    persistent_key: Float[Tensor, "heads vectors d_head"],
    persistent_value: Float[Tensor, "heads vectors d_head"],
) -> Float[Tensor, "batch heads seq d_head"]:
    """Return what `reference.all_attention` returns."""
    d_head = query.shape[-1]
    tensors = [query, key, value, persistent_query, persistent_key, persistent_value]
    # CUDA kernels load eight numbers at a time; columns of zeros change neither scores nor the
    # columns that are kept.
    missing = -d_head % 8 if query.is_cuda else 0
    if missing:
        tensors = [functional.pad(x, (0, missing)) for x in tensors]
    output: Tensor = _all_attention(*tensors, d_head**-0.5)[0]
    return output[..., :d_head] if missing else output


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    persistent_query: Tensor,
    persistent_key: Tensor,
    persistent_value: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the output and the log-sum-exp of all scores."""
    attend = _Kernel(query, scale)
    output, lse = attend.forward(query, key, value, causal=True)
    # Persistent vectors have no batch: all sequences are one long one.
    second, second_lse = attend.forward(
        _one_sequence(persistent_query),
        persistent_key[None],
        persistent_value[None],
        causal=False,
    )
    second, second_lse = (_sequences(x, len(query)) for x in (second, second_lse))
    merged_lse = torch.logaddexp(lse, second_lse).contiguous()
    output = output * (lse - merged_lse).exp()[..., None].to(output.dtype)
    output.addcmul_(second, (second_lse - merged_lse).exp()[..., None].to(output.dtype))
    return _by_token(output), merged_lse


def _fake(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(query.dtype, torch.float32)
    return _by_token(torch.empty_like(value)), query.new_empty(query.shape[:3], dtype=dtype)


def _backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    persistent_query: Tensor,
    persistent_key: Tensor,
    persistent_value: Tensor,
    scale: float,
    output: Tensor,
    lse: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    attend = _Kernel(query, scale)
    q, k, v = attend.backward(grad, query, key, value, output, lse, causal=True)
    second, *persistent = attend.backward(
        _one_sequence(grad),
        _one_sequence(persistent_query),
        persistent_key[None],
        persistent_value[None],
        _one_sequence(output),
        _one_sequence(lse),
        causal=False,
    )
    persistent_k, persistent_v = (x[0].contiguous() for x in persistent)
    q, k, v, second = (_by_token(x) for x in (q, k, v, _sequences(second, len(query))))
    return q, k, v, second, persistent_k, persistent_v


def _fake_backward(*arguments: Any) -> tuple[Tensor, ...]:
    of_tokens, persistent = arguments[:4], arguments[4:6]
    return (
        *(_by_token(torch.empty_like(x)) for x in of_tokens),
        *(x.new_empty(x.shape) for x in persistent),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def _gradients(
    backward: Callable[..., tuple[Tensor, ...]], ctx: Any, grad: Tensor, lse_grad: Tensor
) -> tuple[Tensor | None, ...]:
    *tensors, output, lse = ctx.saved_tensors
    return (*backward(*tensors, ctx.scale, output, lse, grad), None)


_all_attention, _ = register_op(
    "all_attention",
    _forward,
    _backward,
    fake=_fake,
    fake_backward=_fake_backward,
    save=_save,
    gradients=_gradients,
)


def _by_token(x: Tensor) -> Tensor:
    """Return (batch, heads, seq, …) with heads after positions in memory, as projections do."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _one_sequence(x: Tensor) -> Tensor:
    """Return (batch, heads, seq, …) as (1, heads, batch * seq, …).

    A view where heads come after positions in memory.
    """
    return x.transpose(1, 2).flatten(0, 1)[None].transpose(1, 2)


def _sequences(x: Tensor, batch: int) -> Tensor:
    """Return (1, heads, batch * seq, …) as (batch, heads, seq, …)."""
    return x.view(x.shape[1], batch, -1, *x.shape[3:]).transpose(0, 1)


class _Kernel:
    """Torch's fused attention for a device and type, without dropout: output and fp32 lse."""

    def __init__(self, like: Tensor, scale: float) -> None:
        self.scale = scale
        if not like.is_cuda:
            self.kind = "cpu"
        else:
            # The faster one knows no fp32.
            self.kind = "efficient" if like.dtype == torch.float32 else "flash"

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, causal: bool
    ) -> tuple[Tensor, Tensor]:
        inputs = (query, key, value)
        if self.kind == "cpu":
            found = _aten._scaled_dot_product_flash_attention_for_cpu(
                *inputs, 0.0, causal, scale=self.scale
            )
        elif self.kind == "efficient":
            found = _aten._scaled_dot_product_efficient_attention(
                *inputs, None, True, 0.0, causal, scale=self.scale
            )
        else:
            found = _aten._scaled_dot_product_flash_attention(
                *inputs, 0.0, causal, scale=self.scale
            )
        output, lse, *_ = found
        return output, lse[..., : query.shape[2]]

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        lse: Tensor,
        *,
        causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        inputs = (grad, query, key, value)
        if self.kind == "cpu":
            found = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *inputs, output, lse.contiguous(), 0.0, causal, scale=self.scale
            )
        elif self.kind == "efficient":
            # Rows of the lse are as long as the kernel's blocks.
            lse = functional.pad(lse, (0, -lse.shape[2] % 32)).contiguous()
            # Seed and offset of the dropout that there is none of.
            state = [torch.zeros((), dtype=torch.int64, device=grad.device) for _ in range(2)]
            found = _aten._scaled_dot_product_efficient_attention_backward(
                *inputs,
                None,
                output,
                lse,
                *state,
                0.0,
                (True, True, True, False),
                causal,
                scale=self.scale,
            )
        else:
            no_lengths = (None, None)  # all sequences are as long as the tensors say
            longest = (query.shape[2], key.shape[2])
            state = [torch.zeros(2, dtype=torch.uint64, device=grad.device) for _ in range(2)]
            found = _aten._scaled_dot_product_flash_attention_backward(
                *inputs,
                output,
                lse.contiguous(),
                *no_lengths,
                *longest,
                0.0,
                causal,
                *state,
                scale=self.scale,
            )
        return found[0], found[1], found[2]
