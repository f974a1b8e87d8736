"""Words of error messages: types as a researcher names them, and corrections."""

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from orchestrator.sweep.parsing.yaml_node import YamlNode

_FLOAT_AS_TEXT = re.compile(r"([-+]?[\d_]+)(\.[\d_]*)?[eE]([-+]?)(\d+)")
_SUFFIXED = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMbBgGtT])")
_POWER = {"k": 3, "m": 6, "b": 9, "g": 9, "t": 12}
_DURATION = re.compile(
    r"(\d+(?:\.\d+)?)\s*([smhd])(?:ec|in|r|econds?|inutes?|ours?|ays?)?", re.IGNORECASE
)
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_TYPE_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    type(None): "null",
}
_PLURALS = {int: "whole numbers", float: "numbers", str: "texts", Path: "paths"}
_USUAL = {
    "tokens": "10_000_000",
    "batch_tokens": "8_192",
    "seq_len": "256",
    "lr": "3.0e-3",
    "d_model": "128",
    "n_layers": "5",
    "n_heads": "4",
    "d_ff": "352",
    "n_keys": "64",
    "n_people": "3_000",
    "path": "facts.tsv",
    "time_limit_s": "3_600",
    "hang_after_s": "1_800",
}
"""What to show for fields without a default."""
OTHER_NAMES = {
    other: ours
    for ours, others in {
        "lr": "learning_rate max_lr peak_lr max_learning_rate",
        "tokens": "epochs n_epochs num_epochs num_train_epochs max_epochs steps n_steps num_steps "
        "max_steps train_steps iterations max_iters",
        "batch_tokens": "batch_size global_batch_size train_batch_size",
        "seq_len": "context_length context_len block_size max_length max_seq_len sequence_length",
        "warmup_fraction": "warmup warmup_steps warmup_iters warmup_ratio",
        "weight_decay": "wd",
        "schedule": "scheduler lr_scheduler lr_schedule lr_scheduler_type",
        "beta1": "betas adam_beta1",
        "beta2": "adam_beta2",
        "eps": "epsilon adam_eps adam_epsilon",
        "grad_clip": "max_grad_norm clip_grad_norm gradient_clip_val",
        "precision": "dtype mixed_precision",
        "table_optimizer": "optimizer optim",
        "architecture": "name type model_type arch",
        "preset": "size",
        "d_model": "hidden_size hidden_dim embed_dim n_embd dim width",
        "n_layers": "num_layers num_hidden_layers n_layer layers depth",
        "n_heads": "num_heads num_attention_heads n_head heads",
        "d_ff": "intermediate_size ffn_dim d_ffn mlp_dim",
        "n_kv_heads": "num_kv_heads num_key_value_heads",
        "n_experts": "num_experts num_local_experts",
        "training_flops": "flops",
    }.items()
    for other in others.split()
}
"""Names that other programs give to fields -> the field here."""
_INSTEAD = {
    "tokens": "write tokens, the number of tokens in the whole run",
    "batch_tokens": "write batch_tokens, the number of tokens in an optimizer step",
    "warmup_fraction": "write warmup_fraction, a share of the steps",
    "beta1": "write beta1 and beta2",
    "table_optimizer": "remove it: the optimizer is AdamW; "
    "table_optimizer is that of memory tables alone",
}
"""What to write for a field, where its other names mean something a little different."""


@cache
def field_types(cls: Any) -> dict[str, Any]:
    """Return name -> annotation of a dataclass's fields, in order."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def options(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, else the annotation alone."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def describe(annotation: Any) -> str:
    """Return a type in words: `a whole number or null`."""
    members = options(annotation)
    if len(members) > 1:
        return " or ".join(describe(member) for member in members)
    if annotation in _TYPE_WORDS:
        return _TYPE_WORDS[annotation]
    if typing.get_origin(annotation) is Literal:
        return f"one of {', '.join(str(choice) for choice in typing.get_args(annotation))}"
    if _is_sequence(annotation):
        items = [item for item in typing.get_args(annotation) if item is not ...]
        return f"a list of {_PLURALS.get(items[0], 'values')}" if items else "a list"
    if _is_container(annotation):
        return "a mapping"
    return str(annotation)


def example(cls: Any, name: str) -> str:
    """Return something that may be written for a field: its default, else something usual."""
    field = next(field for field in dataclasses.fields(cls) if field.name == name)
    if field.default is not dataclasses.MISSING and field.default is not None:
        return _yaml(field.default)
    if name in _USUAL:
        return _USUAL[name]
    member = options(field_types(cls)[name])[0]
    if typing.get_origin(member) is Literal:
        return str(typing.get_args(member)[0])
    if _is_sequence(member):
        return "[1]"
    if _is_container(member):
        return "{key: value}"
    return {int: "1", float: "1.0", bool: "true", Path: "file.txt"}.get(member, "text")


def type_fix(cls: Any, name: str, value: YamlNode) -> str:
    """Return what to write for a field whose value has the wrong type."""
    members = options(field_types(cls)[name])
    if isinstance(value.content, list) and not any(_is_container(member) for member in members):
        return one_value(value)
    choices = [
        str(c) for m in members if typing.get_origin(m) is Literal for c in typing.get_args(m)
    ]
    if choices:
        return f"write {nearest(str(value.content), choices) or choices[0]}"
    if int in members or float in members:
        return number_fix(value) or f"write for example {example(cls, name)}"
    is_scalar = not isinstance(value.content, list | dict) and value.content is not None
    if is_scalar and any(_is_sequence(member) for member in members):
        return f"write [{value.shown}]"
    if is_scalar and (str in members or Path in members):
        return f"put it in quotes: '{value.text}'"
    return f"write for example {example(cls, name)}"


def one_value(value: YamlNode) -> str:
    """Return how several values are tried, for a list where one value belongs."""
    if ".match." in value.path:
        return "write one value here; to try several, write one entry of trials for each"
    key = ".".join(re.sub(r"\[\d+\]", "", value.path).split(".")[-2:])
    return f"write one value here; to try several, write grid: {{{key}: […]}} in an entry of trials"


def number_fix(value: YamlNode) -> str | None:
    """Return how to write a number that YAML reads as something else; None if it is none."""
    if isinstance(value.content, bool) and value.text.lower() not in ("true", "false"):
        return f"YAML reads {value.text} as {str(value.content).lower()}: write a number"
    if not isinstance(value.content, str):
        return None
    written = value.content.strip()
    match = _FLOAT_AS_TEXT.fullmatch(written)
    if match:
        whole, fraction, sign, exponent = match.groups()
        fraction = fraction if fraction and fraction != "." else ".0"
        number = f"{whole}{fraction}e{sign or '+'}{exponent}"
        if value.text[:1] in ("'", '"'):
            return f"write {number} without quotes"
        return f"write {number} (without a point and a signed exponent YAML reads it as text)"
    if re.fullmatch(r"[-+]?\d[\d_]*(\.\d*)?", written):
        return f"write {written} without quotes"
    match = _DURATION.fullmatch(written)
    if match and re.sub(r"\[\d+\]$", "", value.path).endswith("_s"):
        return f"write {float(match[1]) * _SECONDS[match[2].lower()]:_.10g} (seconds)"
    match = _SUFFIXED.fullmatch(written)
    if match:
        scaled = float(match[1]) * 10 ** _POWER[match[2].lower()]
        return f"write {int(scaled):_}" if scaled == int(scaled) else f"write {scaled}"
    if re.fullmatch(r"\d{1,3}(,\d{3})+", written):
        return f"write {written.replace(',', '_')}"
    return None


def looks_like_number(value: YamlNode) -> bool:
    """Whether text was meant as a number that YAML 1.1 does not read as one: `3e18`, `1,000`."""
    if not isinstance(value.content, str):
        return False
    return re.fullmatch(r"[-+]?\d[\d_,.]*([eE][-+]?\d+)?", value.content) is not None


def nearest(key: str, known: Collection[str], *, cutoff: float = 0.65) -> str | None:
    """Return the known key that looks most like this one, or None when none does."""
    close = difflib.get_close_matches(key, sorted(known), n=1, cutoff=cutoff)
    if close:
        return close[0]
    begun = [name for name in known if len(key) >= 3 and name.startswith(key)]
    return begun[0] if len(begun) == 1 else None


def meant(key: str, known: Collection[str]) -> str | None:
    """Return the known key that was meant: one that looks like this, or has it for another name."""
    ours = OTHER_NAMES.get(key, key)
    return nearest(key, known, cutoff=0.85) or (ours if ours in known else nearest(key, known))


def suggestion(key: str, known: Collection[str]) -> str:
    """Return what was probably meant, else what there is."""
    guess = nearest(key, known)
    return f"did you mean {guess!r}?" if guess else f"there are {', '.join(known) or 'none'}"


def key_fix(key: str, known: Collection[str], elsewhere: Mapping[str, str]) -> str:
    """Return the fix of an unknown key.

    A near-certain slip comes first, then what other programs call a known key, then the key's
    section, then a guess.
    """
    slip = nearest(key, known, cutoff=0.85)
    ours = OTHER_NAMES.get(key, key)
    if slip is None and ours in known:
        return _INSTEAD.get(ours, f"did you mean {ours!r}?")
    if slip is None and key in elsewhere:
        return elsewhere[key]
    return suggestion(key, known)


def _is_sequence(annotation: Any) -> bool:
    return annotation in (list, tuple) or typing.get_origin(annotation) in (list, tuple)


def _is_container(annotation: Any) -> bool:
    return _is_sequence(annotation) or typing.get_origin(annotation) in (dict, Mapping)


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and "e" in repr(value) and "." not in repr(value):
        return repr(value).replace("e", ".0e")
    return str(list(value)) if isinstance(value, tuple) else str(value)
