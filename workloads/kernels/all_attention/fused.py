"""All-attention by torch's fused attention kernels.

Never a score in memory, no vector repeated per sequence.

Two calls, causal attention to the positions and full attention to the persistent vectors, each with
the logarithm of its weights' sum, are merged into the one softmax over both: `lse = log(exp(lse_1)
+ exp(lse_2))` and `output = sum of exp(lse_i - lse) output_i`. A fused backward pass needs the
output and the lse of the softmax only to know the weights and the mean gradient; given the merged
ones, the backward pass of each call is that of the joint softmax, exactly.

The public attention function returns no lse, so torch's internal operations are called, those that
it calls itself.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, autograd
from torch.nn import functional

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
    output: Tensor = _apply(*tensors, d_head**-0.5)
    return output[..., :d_head] if missing else output


# Not for the compiler: dynamo (torch 2.11) loses what `ctx.rests` holds on CUDA, and makes the
# gradients of all inputs zero without a word.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _apply(*arguments: Any) -> Tensor:
    output: Tensor = _AllAttention.apply(*arguments)  # type: ignore[no-untyped-call]
    return output


class _AllAttention(autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        query, key, value, persistent_query, persistent_key, persistent_value, scale = arguments
        attend = _Kernel(query, scale)
        output, lse, rest = attend.forward(query, key, value, causal=True)
        # Persistent vectors have no batch: all sequences are one long one.
        second, second_lse, second_rest = attend.forward(
            _one_sequence(persistent_query),
            persistent_key[None],
            persistent_value[None],
            causal=False,
        )
        second, second_lse = (_sequences(x, len(query)) for x in (second, second_lse))
        merged_lse = torch.logaddexp(lse, second_lse)
        output = output * (lse - merged_lse).exp()[..., None].to(output.dtype)
        output.addcmul_(second, (second_lse - merged_lse).exp()[..., None].to(output.dtype))
        ctx.save_for_backward(*arguments[:-1], output, merged_lse)
        ctx.scale, ctx.rests = scale, (rest, second_rest)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, persistent_query, persistent_key, persistent_value, output, lse = (
            ctx.saved_tensors
        )
        (grad,) = grads
        attend = _Kernel(query, ctx.scale)
        gradients = attend.backward(grad, query, key, value, output, lse, ctx.rests[0], causal=True)
        second, *persistent = attend.backward(
            _one_sequence(grad),
            _one_sequence(persistent_query),
            persistent_key[None],
            persistent_value[None],
            _one_sequence(output),
            _one_sequence(lse),
            ctx.rests[1],
            causal=False,
        )
        return (*gradients, _sequences(second, len(query)), *(x[0] for x in persistent), None)


def _one_sequence(x: Tensor) -> Tensor:
    """Return (batch, heads, seq, …) as (1, heads, batch * seq, …).

    A view where heads come after positions in memory.
    """
    return x.transpose(1, 2).flatten(0, 1)[None].transpose(1, 2)


def _sequences(x: Tensor, batch: int) -> Tensor:
    """Return (1, heads, batch * seq, …) as (batch, heads, seq, …)."""
    return x.view(x.shape[1], batch, -1, *x.shape[3:]).transpose(0, 1)


class _Kernel:
    """Torch's fused attention for a device and type, without dropout.

    Output, fp32 lse, and what its backward asks for.
    """

    def __init__(self, like: Tensor, scale: float) -> None:
        self.scale = scale
        if not like.is_cuda:
            self.kind = "cpu"
        else:
            # The faster one knows no fp32.
            self.kind = "efficient" if like.dtype == torch.float32 else "flash"

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, causal: bool
    ) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
        if self.kind == "cpu":
            output, lse = _aten._scaled_dot_product_flash_attention_for_cpu(
                query, key, value, 0.0, causal, scale=self.scale
            )
            return output, lse, ()
        if self.kind == "efficient":
            output, lse, *rest = _aten._scaled_dot_product_efficient_attention(
                query, key, value, None, True, 0.0, causal, scale=self.scale
            )
            return output, lse[..., : query.shape[2]], tuple(rest)
        output, lse, *rest = _aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, causal, scale=self.scale
        )
        # Cumulative lengths, longest sequences, and the state of the dropout that there is none of.
        return output, lse, tuple(rest[:6])

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        lse: Tensor,
        rest: tuple[Any, ...],
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
            found = _aten._scaled_dot_product_efficient_attention_backward(
                *inputs,
                None,
                output,
                lse,
                *rest,
                0.0,
                (True, True, True, False),
                causal,
                scale=self.scale,
            )
        else:
            lengths, state = rest[:4], rest[4:]
            found = _aten._scaled_dot_product_flash_attention_backward(
                *inputs, output, lse.contiguous(), *lengths, 0.0, causal, *state, scale=self.scale
            )
        return found[0], found[1], found[2]
