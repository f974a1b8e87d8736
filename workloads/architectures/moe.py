"""Mixture of experts: feed-forward blocks of which a router picks a few per token.

Sources: Shazeer et al. 2017 (arXiv 1701.06538); Dai et al. 2024, "DeepSeekMoE" (arXiv 2401.06066),
for many narrow experts and shared ones; Muennighoff et al. 2024, "OLMoE" (arXiv 2409.02060), for
dropless token choice with a balance loss of 0.01 and a z-loss of 0.001; Zhou et al. 2022 (arXiv
2202.09368) for experts that choose tokens, which is how Berges et al. 2024 (arXiv 2412.09764) train
their baseline. The backbone is `dense`'s.

Departures:
    * Losses are averaged over the layers with experts, so that a coefficient means the same at
      every depth.
    * `selection_bias` is moved by the optimizer, not by a fixed step (`experts.SelectionBias`), and
      is added to softmax probabilities; DeepSeek's models use sigmoids.
    * `olmoe_1b` normalises queries and keys per head, OLMoE across heads: 61,440 gains fewer.
    * Berges et al. say that every layer has experts, that experts choose in training and the
      router's best one works in evaluation, and how many there are. That experts take an even share
      (capacity 1) follows from their compute; the z-loss of the presets is ours.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from workloads.accounting.counts import Components
from workloads.field_error import FieldError, NonNegativeFloat, NonNegativeInt, PositiveInt
from workloads.layers.backbone.layer_placement import check_absent, check_placement
from workloads.layers.backbone.llama import PAPER, SMALL, TINY, LlamaFrame
from workloads.layers.backbone.size_family import (
    FreeDimension,
    backbone_fields,
    nearest_member,
    without_d_ff,
)
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.block import Block
from workloads.layers.modules.feed_forward import SwiGLU, SwiGLUShape
from workloads.layers.modules.moe import (
    Evaluation,
    Group,
    MixtureOfExperts,
    MixtureShape,
    Routing,
)


@dataclass(frozen=True, kw_only=True)
class Config(LlamaFrame):
    """Transformer with experts in all or some layers, dense feed-forward in the others."""

    FREE_DIMENSION: ClassVar[str] = "d_expert"
    """Field that `match:` solves for unless told otherwise."""

    n_experts: PositiveInt
    """Routed experts in a layer."""
    d_expert: PositiveInt
    """Width of an expert, shared ones too."""
    top_k: PositiveInt = 1
    """Routed experts that work on a token, where tokens choose."""
    n_shared_experts: NonNegativeInt = 0
    """Experts that work on every token besides."""
    d_ff: PositiveInt | None = None
    """Width of the feed-forward blocks of layers without experts; null where every layer has
    experts."""
    moe_layers: tuple[int, ...] | None = None
    """Layers with experts, from 0; None places them by the two fields below."""
    moe_first: int | None = None
    """First layer with experts; None is 0."""
    moe_stride: PositiveInt | None = None
    """Layers from one with experts to the next; None is 1, every layer."""
    renormalise: bool = False
    """Divide a token's chosen probabilities by their sum before they weigh the experts' outputs."""
    routing: Routing = "token_choice"
    """Whether tokens choose their top_k experts, or each expert its tokens, by the same
    probabilities. The second is not causal in training."""
    capacity: float | None = None
    """Where experts choose: tokens that an expert takes over an even share, so also how many
    experts work on a token on average; None is 1."""
    evaluation: Evaluation = "top_1"
    """Where experts choose in training: how evaluation chooses. `top_1`, the token's best expert,
    is causal."""
    group: Group = "batch"
    """Among which tokens experts choose and over which the balance loss is taken: those of one
    pass, which makes results depend on the micro batch, or those of one sequence."""
    balance_loss: NonNegativeFloat | None = None
    """Coefficient of the balance loss, 1 for even loads; None is 0.01, or 0 with selection_bias or
    where experts choose."""
    z_loss: NonNegativeFloat = 0.001
    """Coefficient of the mean square of the router's log-normaliser."""
    selection_bias: bool = False
    """Balance by a bias per expert that only matters for the choice; the optimizer moves it against
    the load."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_k > self.n_experts:
            rule = f"must lie in 1..n_experts ({self.n_experts})"
            fix = f"the nearest is {self.n_experts}"
            raise FieldError("top_k", rule, self.top_k, fix, ("n_experts",))
        self._check_placement()
        if self.routing == "token_choice":
            self._check_token_choice()
        else:
            self._check_expert_choice()

    def _check_placement(self) -> None:
        field = "moe_first"
        if self.moe_layers is not None:
            field = "moe_layers"
            for name in ("moe_first", "moe_stride"):
                check_absent(self, name, given=field)
        elif self.moe_first is not None and not 0 <= self.moe_first < self.n_layers:
            rule = f"must lie in 0..n_layers - 1 ({self.n_layers - 1})"
            fix = f"the nearest is {min(max(self.moe_first, 0), self.n_layers - 1)}"
            raise FieldError("moe_first", rule, self.moe_first, fix, ("n_layers",))
        check_placement(
            self.placement,
            n_layers=self.n_layers,
            field=field,
            instead="use `dense` for no experts",
        )
        n_dense = self.n_layers - len(self.placement)
        if n_dense and self.d_ff is None:
            rule = f"must be given where layers have no experts ({n_dense} of {self.n_layers})"
            fix = f"as wide as all experts of a token is {round(self._working_width())}"
            raise FieldError("d_ff", rule, "null", fix)
        if not n_dense and self.d_ff is not None:
            rule = "must be null where every layer has experts"
            fix = "write d_ff: null (the width of an expert is another field)"
            raise FieldError("d_ff", rule, self.d_ff, fix)

    def _check_token_choice(self) -> None:
        if self.capacity is not None:
            rule = "must be null where tokens choose (no expert turns a token away)"
            fix = "set top_k, or routing to expert_choice"
            raise FieldError("capacity", rule, self.capacity, fix, ("top_k", "routing"))
        if self.evaluation != "top_1":
            rule = (
                "must be top_1, the default, where tokens choose "
                "(they choose alike in training and evaluation)"
            )
            raise FieldError("evaluation", rule, self.evaluation)
        if self.renormalise and self.top_k == 1:
            rule = (
                "must be false with a top_k of 1 (the weight of the only expert would always be 1 "
                "and the router would learn nothing from the loss)"
            )
            raise FieldError("renormalise", rule, "true", "the nearest top_k is 2", ("top_k",))

    def _check_expert_choice(self) -> None:
        even = "all take equally many tokens"
        if self.top_k != 1:
            fix = "write top_k: 1, and capacity for how many experts work on a token on average"
            others = ("routing", "capacity")
            raise FieldError(
                "top_k", "must be 1 with routing expert_choice", self.top_k, fix, others
            )
        if self.capacity is not None and not 0 < self.capacity <= self.n_experts:
            rule = f"must lie above 0 and up to n_experts ({self.n_experts})"
            fix = f"the nearest is {self.n_experts if self.capacity > self.n_experts else 1}"
            raise FieldError("capacity", rule, self.capacity, fix, ("n_experts",))
        for name, value, rule, why in (
            (
                "renormalise",
                self.renormalise,
                "must be false",
                "a token may have one expert or none",
            ),
            ("balance_loss", self.balance_loss, "must be null or 0", even),
            ("selection_bias", self.selection_bias, "must be false", even),
        ):
            if value:
                rule = f"{rule} with routing expert_choice ({why})"
                got = "true" if value is True else value
                raise FieldError(name, rule, got, others=("routing",))

    def _working_width(self) -> float:
        mixture = self.mixture
        return (mixture.experts_per_token + self.n_shared_experts) * self.d_expert

    @property
    def placement(self) -> tuple[int, ...]:
        """Layers with experts, from 0."""
        if self.moe_layers is not None:
            return tuple(self.moe_layers)
        return tuple(range(self.moe_first or 0, self.n_layers, self.moe_stride or 1))

    @property
    def mixture(self) -> MixtureShape:
        """Sizes of one mixture with absent fields filled in, and its part of the losses."""
        balanced_anyway = self.selection_bias or self.routing == "expert_choice"
        balance_loss = self.balance_loss
        if balance_loss is None:
            balance_loss = 0.0 if balanced_anyway else 0.01
        n_layers = len(self.placement)
        return MixtureShape(
            d_model=self.d_model,
            n_experts=self.n_experts,
            d_expert=self.d_expert,
            top_k=self.top_k,
            n_shared_experts=self.n_shared_experts,
            routing=self.routing,
            capacity=1.0 if self.capacity is None else self.capacity,
            evaluation=self.evaluation,
            group=self.group,
            renormalise=self.renormalise,
            selection_bias=self.selection_bias,
            balance_loss=balance_loss / n_layers,
            z_loss=self.z_loss / n_layers,
        )

    @property
    def non_causal_reasons(self) -> dict[str, str]:
        """Mode -> why an output there can depend on later tokens; empty where tokens choose."""
        if self.routing == "token_choice":
            return {}
        others = "all tokens of the pass" if self.group == "batch" else "all tokens of its sequence"
        why = (
            f"experts choose among {others}, so whether one works on a token depends on later "
            "tokens too"
        )
        training = {"training": why}
        return training if self.evaluation == "top_1" else {**training, "evaluation": why}

    def build(self, vocab_size: int) -> Transformer:
        """Return the model on the default device, its values open until `initialise`."""
        return self.transformer(vocab_size, [self._layer(i) for i in range(self.n_layers)])

    def _layer(self, index: int) -> Block:
        if index in self.placement:
            return self.block_with(MixtureOfExperts(self.mixture))
        assert self.d_ff is not None
        return self.block_with(SwiGLU(self.d_model, self.d_ff))

    def components(self, vocab_size: int) -> Components:
        """Return what the model consists of."""
        n_layers = len(self.placement)
        dense = SwiGLUShape(d_model=self.d_model, d_ff=self.d_ff or 0)
        return [
            *self.attention_parts(vocab_size),
            (self.n_layers - n_layers, dense),
            (n_layers, self.mixture),
        ]

    @classmethod
    def nearest_size(cls, non_embedding_params: int, **overrides: Any) -> "Config":
        """Return the member of the family nearest to a size, which counts all experts.

        Raises:
            ValueError: If none is within a quarter of it.
        """
        # Widths that suit a GPU, but in models so small that they would be too far apart.
        d_expert = FreeDimension(
            name="d_expert",
            lowest=0.375,
            highest=1.5,
            step=8 if non_embedding_params >= 10**6 else 1,
        )
        return nearest_member(cls, _family, [d_expert], non_embedding_params, overrides)


def _fine_grained(fields: dict[str, Any], *, n_experts: int, step: int = 8) -> dict[str, Any]:
    """Return fields of one shared and three routed experts, about as wide as `dense`'s FFN."""
    return {
        **without_d_ff(fields),
        "n_experts": n_experts,
        "d_expert": step * max(1, round(fields["d_ff"] / (4 * step))),
        "top_k": 3,
        "n_shared_experts": 1,
    }


def _family(d_model: int) -> dict[str, Any]:
    """Fields of the member of this width."""
    if d_model <= 64:
        return _fine_grained(backbone_fields(d_model), n_experts=8, step=1)
    return _fine_grained(backbone_fields(d_model), n_experts=16)


def _full_width(fields: dict[str, Any], *, n_experts: int) -> dict[str, Any]:
    return {
        **without_d_ff(fields),
        "n_experts": n_experts,
        "d_expert": fields["d_ff"],
        "routing": "expert_choice",
    }


_PAPER_EXPERTS = {"134m": 16, "373m": 8, "720m": 6, "1.3b": 4}
"""Berges et al. 2024: the fewest with which the model is larger than their Memory."""

PRESETS: dict[str, dict[str, Any]] = {
    # Few experts, and widths that need not suit a GPU: every expert costs a CPU nine small products
    # a layer and step.
    **{name: _fine_grained(fields, n_experts=8, step=1) for name, fields in TINY.items()},
    **{name: _fine_grained(fields, n_experts=16) for name, fields in SMALL.items()},
    **{name: _full_width(PAPER[name], n_experts=n) for name, n in _PAPER_EXPERTS.items()},
    # Ours: no 8b baseline was published. Seven of 64 narrow experts and a shared one are as wide as
    # `dense`'s block.
    "8b": {
        **without_d_ff(PAPER["8b"]),
        "n_experts": 64,
        "d_expert": 1792,
        "top_k": 7,
        "n_shared_experts": 1,
    },
    # OLMoE-1B-7B: 6.9 billion parameters, 1.3 of which work on a token, for a vocabulary of 50,304.
    "olmoe_1b": {
        "d_model": 2048,
        "n_layers": 16,
        "n_heads": 16,
        "qk_norm": True,
        "n_experts": 64,
        "d_expert": 1024,
        "top_k": 8,
    },
}
