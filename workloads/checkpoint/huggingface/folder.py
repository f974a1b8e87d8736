"""Folders that transformers loads: config.json, model.safetensors and a tokenizer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from workloads.architectures import dense
from workloads.checkpoint.huggingface import meta_llama
from workloads.checkpoint.huggingface.families import config_json, family_of, read_config
from workloads.checkpoint.huggingface.parameter_map import to_ours, to_theirs
from workloads.data.tokenizer import TextTokenizer

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TRIAL = "memscale.json"
"""Names the trial whose model a folder holds."""
_SEQ_LEN = 2_048
"""The longest sequence of a model whose folder does not say it."""


def write(
    folder: Path,
    config: Any,
    weights: Mapping[str, Tensor],
    *,
    seq_len: int,
    tokenizer: TextTokenizer | None,
    trial_id: str | None = None,
) -> None:
    """Write a model as transformers reads it, in fp32.

    Args:
        folder: Made if it is not there; files of the same names are replaced.
        config: Config of the architecture.
        weights: Its parameters by name; buffers are passed over.
        seq_len: Tokens of a training sequence.
        tokenizer: Of the training text; None where the data have words of their own.
        trial_id: Whose model it is. The folder names it, and one that holds another model is left
            as it is. None: whatever the folder holds is replaced.

    Raises:
        ValueError: If transformers has no model that computes the same, or the folder holds the
            model of another trial.
    """
    from safetensors.torch import save_file

    vocab_size = weights["embedding.weight"].shape[0]
    record = config_json(config, vocab_size=vocab_size, seq_len=seq_len)
    if trial_id is not None:
        _refuse_another_model(folder, trial_id)
    folder.mkdir(parents=True, exist_ok=True)
    if trial_id is not None:
        # Neither in the config nor in the weights, whose hash is part of what trials start from.
        _write_json(folder / TRIAL, {"trial_id": trial_id})
    if tokenizer is not None:
        special = {"bos_token_id": tokenizer.separator, "eos_token_id": tokenizer.separator}
        record |= special
        tokenizer.save_in(folder)
        _write_json(folder / "tokenizer_config.json", _tokenizer_config(tokenizer, seq_len))
        _write_json(folder / "generation_config.json", special)
    tensors = to_theirs(weights, list(family_of(config).maps(config)))
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    _write_json(folder / CONFIG, record)
    # The library's files are their owner's alone, whatever the umask says.
    (folder / WEIGHTS).chmod((folder / CONFIG).stat().st_mode)


def _refuse_another_model(folder: Path, trial_id: str) -> None:
    """Raise a ValueError if a folder holds a model, and not of this trial."""
    try:
        files(folder)
    except ValueError:
        return
    known = folder / TRIAL
    holds = _read_json(known)["trial_id"] if known.is_file() else "unknown origin"
    if holds != trial_id:
        raise ValueError(
            f"{folder}: holds a model of {holds}; name another folder, or remove this one"
        )


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A folder with a trained model: Hugging Face's, or Meta's (`meta_llama`)."""

    folder: Path
    architecture: str
    """Name in YAML of the architecture that computes the same."""
    fields: Mapping[str, Any]
    """Fields of its Config."""
    config: Any
    """Its Config."""
    vocab_size: int
    seq_len: int
    """The longest sequence that the folder says the model reads; 2,048 where it says none."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Config and weights, whose content decides what is read."""
        return tuple(files(self.folder))

    def weights(self) -> dict[str, Tensor]:
        """Return all parameters under our names, in the types they were stored in.

        Raises:
            ValueError: If one is missing.
        """
        if (self.folder / CONFIG).is_file():
            return to_ours(
                _read_tensors(self.folder), list(family_of(self.config).maps(self.config))
            )
        return meta_llama.read_weights(self.folder, self.config)


def read(folder: Path) -> Pretrained:
    """Return what a folder holds, without reading its weights.

    Raises:
        ValueError: If there is no model in it, one that no architecture here computes, or one in
            several parts of Meta's format.
    """
    files(folder)
    if not (folder / CONFIG).is_file():
        fields, vocab_size = meta_llama.read_config(folder)
        architecture, config, seq_len = "dense", dense.Config(**fields), _SEQ_LEN
    else:
        record = _read_json(folder / CONFIG)
        try:
            family, fields = read_config(record)
        except ValueError as error:
            raise ValueError(f"{folder / CONFIG}: {error}") from error
        architecture, config = family.architecture, family.config(**fields)
        vocab_size = int(record["vocab_size"])
        seq_len = int(record.get("max_position_embeddings", _SEQ_LEN))
    return Pretrained(
        folder=folder,
        architecture=architecture,
        fields=fields,
        config=config,
        vocab_size=vocab_size,
        seq_len=seq_len,
    )


def files(folder: Path) -> list[Path]:
    """Return the files of a folder that hold its config and weights.

    Raises:
        ValueError: If it holds no model in a known format.
    """
    for config, patterns in (
        (CONFIG, (WEIGHTS, INDEX)),
        (meta_llama.CONFIG, (meta_llama.WEIGHTS,)),
    ):
        there = [folder / name for name in patterns if (folder / name).is_file()]
        if (folder / config).is_file() and there:
            shards = sorted(folder.glob("model-*.safetensors")) if there[0].name == INDEX else []
            return [folder / config, *there, *shards]
    raise ValueError(
        f"{folder}: holds no model; expected {CONFIG} and {WEIGHTS} (Hugging Face), or "
        f"{meta_llama.CONFIG} and {meta_llama.WEIGHTS} (Meta)"
    )


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    names = [WEIGHTS]
    if not (folder / WEIGHTS).is_file():
        names = sorted(set(_read_json(folder / INDEX)["weight_map"].values()))
    tensors: dict[str, Tensor] = {}
    for name in names:
        tensors |= load_file(folder / name)
    # GPT-NeoX's head has another name since version 5 of transformers.
    if "lm_head.weight" in tensors:
        tensors.setdefault("embed_out.weight", tensors["lm_head.weight"])
    return tensors


def _tokenizer_config(tokenizer: TextTokenizer, seq_len: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.separator_text,
        "eos_token": tokenizer.separator_text,
        "model_max_length": seq_len,
        "clean_up_tokenization_spaces": False,
    }


def _read_json(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from error
    return record


def _write_json(path: Path, record: Mapping[str, Any]) -> None:
    path.write_text(f"{json.dumps(record, indent=2)}\n", encoding="utf-8")
