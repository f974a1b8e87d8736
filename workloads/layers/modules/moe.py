"""Mixture of experts in the place of a feed-forward block."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from workloads.accounting.counts import Component, FlopCount, ParamCount, Precision, distinct_rows
from workloads.kernels.expert_dispatch import collect, spread
from workloads.kernels.expert_mlp import op as expert_mlp
from workloads.kernels.grouped_mm import grouped_mm
from workloads.layers.context import Context
from workloads.layers.modules.autocast import autocast_dtype
from workloads.layers.modules.feed_forward import SwiGLU, SwiGLUShape
from workloads.layers.modules.init import truncated_normal
from workloads.layers.modules.linear import Linear
from workloads.layers.modules.moe_routing import (
    Routes,
    balance_loss,
    best_experts,
    expert_choice,
    loads,
    token_choice,
    z_loss,
)
from workloads.layers.modules.usage_stats import ExpertUsage

Routing = Literal["token_choice", "expert_choice"]
Evaluation = Literal["top_1", "expert_choice"]
Group = Literal["batch", "sequence"]


@dataclass(frozen=True, kw_only=True)
class MixtureShape(Component):
    """Sizes of one mixture of experts and how it chooses, and what follows from them."""

    d_model: int
    n_experts: int
    d_expert: int
    top_k: int
    n_shared_experts: int = 0
    shared_remainder: int = 0
    """Columns that the shared experts have besides."""
    routing: Routing = "token_choice"
    capacity: float = 1.0
    """Where experts choose: how many work on a token on average."""
    evaluation: Evaluation = "top_1"
    """Where experts choose in training: how evaluation chooses."""
    group: Group = "batch"
    renormalise: bool = False
    selection_bias: bool = False
    balance_loss: float = 0.0
    z_loss: float = 0.0
    """Coefficients of this layer's losses."""

    @property
    def experts_per_token(self) -> float:
        """Routed experts that work on a token in training, on average."""
        return float(self.top_k if self.routing == "token_choice" else self.capacity)

    @property
    def shared(self) -> SwiGLUShape:
        """Sizes of all shared experts together: one block as wide as all of them."""
        d_ff = self.n_shared_experts * self.d_expert + self.shared_remainder
        return SwiGLUShape(d_model=self.d_model, d_ff=d_ff)

    @property
    def params_per_expert(self) -> int:
        """Weights of one expert."""
        return 3 * self.d_model * self.d_expert

    @property
    def expert_params(self) -> int:
        """Weights of all routed experts."""
        return self.n_experts * self.params_per_expert

    def param_count(self) -> ParamCount:
        """Count experts, router and selection biases."""
        router = self.n_experts * (self.d_model + (1 if self.selection_bias else 0))
        return ParamCount(
            feed_forward=self.expert_params + self.shared.param_count().feed_forward, router=router
        )

    def active_params(self) -> int:
        """Count router, shared experts, and the routed experts that work on one token."""
        working = math.ceil(self.experts_per_token * self.params_per_expert)
        return self.param_count().total - self.expert_params + working

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count the products of the experts that work on a token, and the router's."""
        routed = 2.0 * self.experts_per_token * self.params_per_expert
        return FlopCount(
            feed_forward=routed + self.shared.flops_per_token(seq_len).feed_forward,
            router=2.0 * self.d_model * self.n_experts,
        )

    def bytes_per_token(self, *, batch_tokens: int, element_bytes: int) -> dict[str, float]:
        """Return the bytes of router, shared experts, and experts that a batch needs in evaluation.

        Their number is the expected one under even use. Experts that choose leave none unused.
        """
        each = self.top_k
        if self.routing == "expert_choice" and self.evaluation == "expert_choice":
            each = self.n_experts
        experts = distinct_rows(self.n_experts, draws=batch_tokens, without_repetition=each)
        count = self.param_count()
        always = count.feed_forward - self.expert_params
        return {
            "feed_forward": element_bytes
            * (always + experts * self.params_per_expert)
            / batch_tokens,
            "router": element_bytes * count.router / batch_tokens,
        }

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return what router, routes, experts and shared experts keep.

        An expert keeps its copy of the token, gate, silu(gate), up, their product, and that times
        the router's weight. Router and losses stay fp32; ids are int64.
        """
        c, casts = (4, 0) if precision == "fp32" else (2, 1)
        n = self.experts_per_token
        router = 4.0 * self.d_model + 4.0 * self.n_experts
        if self.z_loss:
            router += 4.0 * self.n_experts + 4.0
        if self.routing == "token_choice":
            # Chosen experts and their order; token of each row and row of each token; where a
            # token's rows start.
            routes = 8.0 * (4 * n + 1) + (4 * (n + 1) if self.renormalise else 0)
        else:
            routes = 8.0 * (3 * n + 1)
        experts = c * n * (self.d_model + 5 * self.d_expert) + c * n
        shared = 0.0
        if self.n_shared_experts:
            shared = self.shared.activation_bytes_per_token(seq_len, precision)
            if not casts:
                # The router's input.
                shared -= c * self.d_model
        return router + routes + experts + shared


class Router(Linear):
    """Token to one logit per expert, in fp32 or wider.

    Rounded logits would tie, and choose by chance.
    """

    PARAM_GROUP: ClassVar[str] = "router"

    def forward(self, x: Float[Tensor, "tokens d_model"]) -> Float[Tensor, "tokens experts"]:
        """Return the logits."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            return functional.linear(x.to(dtype), self.weight.to(dtype))


class SelectionBias(nn.Module):
    """A number per expert that is added where experts are chosen, and nowhere else.

    It falls while an expert is chosen more often than on average and rises while less, with no loss
    that would pull at the router. Source: Wang et al. 2024 (arXiv 2408.15664) move it by a fixed
    step after every optimizer step, by the sign of the excess. Ours is a parameter whose gradient
    is the excess (`steer`), so the optimizer moves it, by about a learning rate a step: AdamW's
    step does not depend on the size of a gradient. That makes it exact over micro batches, ranks
    and resumes, which add up and save gradients and parameters anyway.
    """

    PARAM_GROUP: ClassVar[str] = "router"

    def __init__(self, n_experts: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(n_experts))

    def steer(self, load: Int[Tensor, " experts"]) -> Float[Tensor, ""]:
        """Return a zero whose gradient in the bias is each expert's scaled excess load."""
        share = load.to(self.bias.dtype) / load.sum()
        excess = share - 1.0 / len(share)
        return ((self.bias - self.bias.detach()) * (_SMALL * excess)).sum()

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write zeros."""
        value.zero_()


_SMALL = 1e-3
"""Keeps the bias out of the norm that gradients are clipped by; still far above AdamW's eps."""


class Experts(nn.Module):
    """SwiGLU experts: `down(silu(gate x) * up x)` with matrices of each expert's own."""

    PARAM_GROUP: ClassVar[str] = "feed_forward"

    def __init__(self, n_experts: int, d_model: int, d_expert: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(n_experts, d_model, d_expert))
        self.up = nn.Parameter(torch.empty(n_experts, d_model, d_expert))
        self.down = nn.Parameter(torch.empty(n_experts, d_expert, d_model))

    def forward(
        self, x: Float[Tensor, "tokens d_model"], routes: Routes
    ) -> Float[Tensor, "tokens d_model"]:
        """Return for every token the weighted sum of its experts' outputs.

        Zero where it has none.
        """
        dtype = autocast_dtype(x)
        gate, up, down = (weight.to(dtype) for weight in (self.gate, self.up, self.down))
        ends = routes.ends
        if expert_mlp.is_fused(gate):
            return expert_mlp.expert_mlp(
                x.to(dtype),
                gate,
                up,
                down,
                routes.weights,
                routes.token_of_row,
                routes.rows_by_token,
                routes.starts,
                ends,
            )
        rows = spread(x.to(dtype), routes.token_of_row, routes.rows_by_token, routes.starts)
        # The loop over experts needs numbers: one wait for a device here instead of one in each
        # product.
        ends = ends.cpu()
        hidden = functional.silu(grouped_mm(rows, gate, ends)) * grouped_mm(rows, up, ends)
        # Weighing before the last map is the same, and keeps d_expert numbers for the backward pass
        # instead of d_model.
        hidden = hidden * routes.weights[:, None].to(dtype)
        output = grouped_mm(hidden, down, ends)
        return collect(output, routes.token_of_row, routes.rows_by_token, routes.starts)

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write a truncated normal with variance 1 / inputs, as `Linear` does."""
        truncated_normal(value, value.shape[1] ** -0.5, generator)


class MixtureOfExperts(nn.Module):
    """Mixture of experts: a router's choice, weighted by its probabilities, plus shared experts.

    `y = sum_e w_e expert_e(x) + shared(x)`, `w` the chosen of `softmax(router x)`. Dropless: an
    expert works on however many tokens choose it. Sources: Shazeer et al. 2017 (arXiv 1701.06538);
    Dai et al. 2024, "DeepSeekMoE" (arXiv 2401.06066) for many small and shared experts; Zhou et al.
    2022 (arXiv 2202.09368) for experts that choose.
    """

    def __init__(self, shape: MixtureShape) -> None:
        super().__init__()
        self.shape = shape
        self.router = Router(shape.d_model, shape.n_experts)
        self.selection_bias = SelectionBias(shape.n_experts) if shape.selection_bias else None
        self.experts = Experts(shape.n_experts, shape.d_model, shape.d_expert)
        self.shared = SwiGLU(shape.d_model, shape.shared.d_ff) if shape.n_shared_experts else None
        self.usage = ExpertUsage(shape.n_experts)

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], context: Context
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return the layer's output, to be added to the residual.

        Append the router's losses in training.

        Raises:
            ValueError: If experts choose tokens and a cache is given.
        """
        tokens = x.reshape(-1, x.shape[-1])
        logits = self.router(tokens)
        probabilities = logits.softmax(dim=-1)
        groups = 1 if self.shape.group == "batch" else len(x)
        experts = None
        if self._experts_choose():
            if context.cache is not None:
                raise ValueError(_NO_DECODING)
            routes = expert_choice(
                probabilities.view(groups, -1, self.shape.n_experts), capacity=self.shape.capacity
            )
        else:
            bias = None if self.selection_bias is None else self.selection_bias.bias
            experts = best_experts(probabilities, self.shape.top_k, bias)
            routes = token_choice(probabilities, experts, renormalise=self.shape.renormalise)
        if self.training:
            context.losses.extend(self._losses(logits, probabilities, routes, experts, groups))
        if context.record_usage:
            dropped = 0 if experts is not None else routes.dropped
            self.usage.record(routes.load, probabilities, dropped)
        output: Tensor = self.experts(tokens, routes)
        if self.shared is not None:
            output = output + self.shared(tokens)
        return output.view(x.shape)

    def _experts_choose(self) -> bool:
        how = self.shape.routing if self.training else self.shape.evaluation
        return self.shape.routing == "expert_choice" and how == "expert_choice"

    def _losses(
        self,
        logits: Tensor,
        probabilities: Tensor,
        routes: Routes,
        experts: Tensor | None,
        groups: int,
    ) -> list[Tensor]:
        losses = []
        if self.shape.z_loss:
            losses.append(self.shape.z_loss * z_loss(logits))
        if self.shape.balance_loss and experts is not None:
            load = loads(experts.view(groups, -1), self.shape.n_experts)
            grouped = probabilities.view(groups, -1, self.shape.n_experts)
            losses.append(self.shape.balance_loss * balance_loss(grouped, load))
        if self.selection_bias is not None:
            losses.append(self.selection_bias.steer(routes.load))
        return losses

    def record_usage(self, output: Tensor, residual: Tensor) -> None:
        """Record the size of the output against the residual stream's."""
        self.usage.record_output(output, residual)


_NO_DECODING = (
    "routing: while experts choose tokens, a token's experts depend on all tokens of the pass, "
    "so nothing can be decoded token by token; "
    "set evaluation to top_1 and put the model into evaluation mode (`model.eval()`)"
)
