"""Families of models that both sides know: config.json to a Config, and back.

| architecture | model_type |
|---|---|
| `dense` | `llama`; `qwen3` with `qk_norm` |
| `moe` | `mixtral` with `renormalise`; `qwen3_moe` with `qk_norm` |
| `pythia` | `gpt_neox` |
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workloads.architectures import dense, moe, pythia
from workloads.checkpoint.huggingface.parameter_map import (
    ParameterMap,
    llama_maps,
    moe_maps,
    neox_maps,
)
from workloads.layers.backbone.neox import rotary_columns

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model type of transformers, and the architecture here that is the same function."""

    model_type: str
    class_name: str
    """Of transformers."""
    config: type[Any]
    """Config of our architecture."""
    names: Mapping[str, str]
    """Our field -> key of config.json."""
    ours: Callable[[Json], dict[str, Any]]
    """config.json to the fields that `names` does not say."""
    theirs: Callable[[Any], dict[str, Any]]
    """Config to the keys that `names` does not say."""
    maps: Callable[[Any], Iterable[ParameterMap]]
    expected: Mapping[str, Any]
    """Keys of config.json that must have this value where they are there: we have no other."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What transformers takes for keys that are absent, where it is not what we take."""

    @property
    def architecture(self) -> str:
        """Name in YAML."""
        return self.config.__module__.rpartition(".")[2]


def family_of(config: Any) -> Family:
    """Return the family of a Config.

    Raises:
        ValueError: If transformers has no model that computes the same.
    """
    if isinstance(config, dense.Config):
        return FAMILIES["qwen3" if config.qk_norm else "llama"]
    if isinstance(config, pythia.Config):
        if not config.rotary_columns:
            raise ValueError("rotary_fraction: GPT-NeoX has no model without rotary positions")
        return FAMILIES["gpt_neox"]
    if isinstance(config, moe.Config):
        return _family_of_moe(config)
    name = type(config).__module__.rpartition(".")[2]
    raise ValueError(
        f"{name}: transformers has no such model; dense, pythia and moe can be exported"
    )


def _family_of_moe(config: moe.Config) -> Family:
    refused = {
        "routing": config.routing != "token_choice",
        "n_shared_experts": config.n_shared_experts > 0,
        "selection_bias": config.selection_bias,
    }
    for name, there in refused.items():
        if there:
            raise ValueError(
                f"{name}: neither Mixtral nor Qwen3-MoE can express "
                f"{getattr(config, name)}; train without it to export"
            )
    if config.qk_norm:
        return FAMILIES["qwen3_moe"]
    if not config.renormalise or len(config.placement) < config.n_layers:
        raise ValueError(
            "moe: Mixtral has experts in every layer and renormalise: true; "
            "any other needs qk_norm: true (Qwen3-MoE)"
        )
    return FAMILIES["mixtral"]


def config_json(config: Any, *, vocab_size: int, seq_len: int) -> dict[str, Any]:
    """Return the config.json of a model.

    Args:
        config: Config of an architecture.
        vocab_size: Tokens that the model knows.
        seq_len: Tokens of a training sequence, the longest that the model has seen.

    Raises:
        ValueError: If transformers has no model that computes the same.
    """
    family = family_of(config)
    return {
        "architectures": [family.class_name],
        "model_type": family.model_type,
        "vocab_size": vocab_size,
        "max_position_embeddings": seq_len,
        "dtype": "float32",
        **{key: getattr(config, field) for field, key in family.names.items()},
        **family.theirs(config),
        **family.expected,
    }


def read_config(record: Json) -> tuple[Family, dict[str, Any]]:
    """Return the family of a config.json, and the fields of our Config.

    Raises:
        ValueError: Naming the key, if the model computes something that ours does not.
    """
    family = FAMILIES.get(str(record.get("model_type")))
    if family is None:
        raise ValueError(
            f"model_type {record.get('model_type')!r} is none of {', '.join(FAMILIES)}"
        )
    if record.get("quantization_config"):
        raise ValueError(
            "the weights are quantised (quantization_config), which memscale does not read; "
            "take the model in bfloat16, float16 or float32"
        )
    # A key that is null is as good as absent.
    stated = {key: value for key, value in record.items() if value is not None}
    for key, value in family.expected.items():
        if stated.get(key, value) != value:
            raise ValueError(f"{key} must be {value!r}, got {stated[key]!r}")
    record = {**family.defaults, **stated}
    if "num_local_experts" in record:
        # Qwen3's name since version 5 of transformers, Mixtral's since ever.
        record = {"num_experts": record["num_local_experts"], **record}
    keys = ["vocab_size", *family.names.values()]
    missing = [key for key in keys if key not in record and key not in _MAY_BE_ABSENT]
    if missing:
        raise ValueError(f"has no {', '.join(missing)}")
    for key in _COUNTS:
        count = record.get(key, 1)
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{key} must be a whole number of at least 1, got {count!r}")
    for key in _ROPE:
        rope = record.get(key, {})
        kind = isinstance(rope, Mapping) and rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise ValueError(
                f"rotary positions are scaled ({key}: {rope}), which memscale does not do"
            )
    d_head = _d_head(record)
    if record.get("head_dim", d_head) != d_head:
        raise ValueError(
            f"head_dim must be hidden_size / num_attention_heads ({d_head}), "
            f"got {record['head_dim']}{'' if 'head_dim' in stated else ', which absence means'}"
        )
    named = {ours: record[key] for ours, key in family.names.items() if key in record}
    return family, {**named, **family.ours(record)}


def _d_head(record: Json) -> int:
    width: int = record["hidden_size"] // record["num_attention_heads"]
    return width


def _rope(record: Json) -> Json:
    """Return what is said of rotary positions, in either version's words."""
    return next((record[key] for key in _ROPE if record.get(key)), {})


def _rope_base(record: Json, key: str = "rope_theta") -> float:
    return float(_rope(record).get("rope_theta") or record.get(key) or 10_000.0)


def _kv_heads(config: Any) -> dict[str, Any]:
    shape = config.attention
    return {"num_key_value_heads": shape.n_kv_heads, "head_dim": shape.d_head}


def _qwen3_moe_fields(record: Json) -> dict[str, Any]:
    n_layers, step = record["num_hidden_layers"], record.get("decoder_sparse_step", 1)
    dense_layers = record.get("mlp_only_layers") or []
    placed = [i for i in range(n_layers) if (i + 1) % step == 0 and i not in dense_layers]
    everywhere = len(placed) == n_layers
    return {
        "rope_base": _rope_base(record),
        "qk_norm": True,
        "moe_layers": None if everywhere else tuple(placed),
        "d_ff": None if everywhere else record.get("intermediate_size"),
    }


def _qwen3_moe_keys(config: Any) -> dict[str, Any]:
    return {
        **_kv_heads(config),
        # Asked for even where no layer has such a block.
        "intermediate_size": config.d_ff or config.d_expert,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [i for i in range(config.n_layers) if i not in config.placement],
    }


def _neox_fields(record: Json) -> dict[str, Any]:
    fraction = _rope(record).get("partial_rotary_factor", record.get("rotary_pct", 0.25))
    d_head = _d_head(record)
    columns = int(d_head * fraction)
    if columns != rotary_columns(d_head, fraction):
        raise ValueError(
            f"rotary positions turn {columns} of {d_head} columns of a head ({fraction}); "
            "memscale turns an even number"
        )
    return {"rope_base": _rope_base(record, "rotary_emb_base"), "rotary_fraction": fraction}


def _neox_keys(config: Any) -> dict[str, Any]:
    d_head = config.d_model // config.n_heads
    fraction = config.rotary_columns / d_head
    if int(d_head * fraction) < config.rotary_columns:
        fraction = math.nextafter(fraction, 1.0)
    return {"rotary_pct": fraction, "rotary_emb_base": config.rope_base}


_FRAME = {
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "tied_embeddings": "tie_word_embeddings",
}
_LLAMA = {**_FRAME, "n_kv_heads": "num_key_value_heads", "norm_eps": "rms_norm_eps"}
_MAY_BE_ABSENT = ("num_key_value_heads", "tie_word_embeddings")
"""Keys whose absence means the same on both sides."""
_ROPE = ("rope_scaling", "rope_parameters")
"""Keys about rotary positions. Where both are there, transformers goes by the first."""
_COUNTS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "decoder_sparse_step",
)
"""Whole numbers that are used before a Config checks them, or that none does."""
_SWIGLU = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
_EXPERTS = {"n_experts": "num_experts", "top_k": "num_experts_per_tok"}

FAMILIES = {
    family.model_type: family
    for family in (
        Family(
            model_type="llama",
            class_name="LlamaForCausalLM",
            config=dense.Config,
            names={**_LLAMA, "d_ff": "intermediate_size"},
            ours=lambda record: {"rope_base": _rope_base(record)},
            theirs=lambda config: {**_kv_heads(config), "rope_theta": config.rope_base},
            maps=llama_maps,
            expected=_SWIGLU,
        ),
        Family(
            model_type="qwen3",
            class_name="Qwen3ForCausalLM",
            config=dense.Config,
            names={**_LLAMA, "d_ff": "intermediate_size"},
            ours=lambda record: {"rope_base": _rope_base(record), "qk_norm": True},
            theirs=lambda config: {**_kv_heads(config), "rope_theta": config.rope_base},
            maps=llama_maps,
            expected={"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False},
            defaults={"head_dim": 128},
        ),
        Family(
            model_type="mixtral",
            class_name="MixtralForCausalLM",
            config=moe.Config,
            names={
                **_LLAMA,
                **_EXPERTS,
                "n_experts": "num_local_experts",
                "d_expert": "intermediate_size",
            },
            ours=lambda record: {"rope_base": _rope_base(record), "renormalise": True},
            theirs=lambda config: {**_kv_heads(config), "rope_theta": config.rope_base},
            maps=lambda config: moe_maps(
                config,
                experts="block_sparse_moe.experts",
                router="block_sparse_moe.gate",
                parts={"gate": "w1", "up": "w3", "down": "w2"},
            ),
            expected={"hidden_act": "silu", "sliding_window": None},
            defaults={"rope_theta": 1_000_000.0},
        ),
        Family(
            model_type="qwen3_moe",
            class_name="Qwen3MoeForCausalLM",
            config=moe.Config,
            names={
                **_LLAMA,
                **_EXPERTS,
                "d_expert": "moe_intermediate_size",
                "renormalise": "norm_topk_prob",
            },
            ours=_qwen3_moe_fields,
            theirs=lambda config: {**_qwen3_moe_keys(config), "rope_theta": config.rope_base},
            maps=lambda config: moe_maps(
                config,
                experts="mlp.experts",
                router="mlp.gate",
                parts={part: f"{part}_proj" for part in ("gate", "up", "down")},
            ),
            expected={"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False},
        ),
        Family(
            model_type="gpt_neox",
            class_name="GPTNeoXForCausalLM",
            config=pythia.Config,
            names={**_FRAME, "d_ff": "intermediate_size", "norm_eps": "layer_norm_eps"},
            ours=_neox_fields,
            theirs=_neox_keys,
            maps=neox_maps,
            expected={
                "hidden_act": "gelu",
                "use_parallel_residual": True,
                "attention_bias": True,
            },
        ),
    )
}
"""model_type -> family."""
