"""Folders that transformers loads: config.json, model.safetensors and a tokenizer."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from workloads.architectures import dense
from workloads.checkpoint.huggingface import meta_llama
from workloads.checkpoint.huggingface.families import (
    Family,
    config_json,
    family_of,
    read_config,
)
from workloads.checkpoint.huggingface.parameter_map import to_ours, to_theirs
from workloads.data.tokenizer import TextTokenizer

LOG = logging.getLogger(__name__)

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TRIAL = "memscale.json"
"""Names the trial whose model a folder holds."""
_HEAD, _NEOX_HEAD = "lm_head.weight", "embed_out.weight"
"""GPT-NeoX's head has the first name since version 5 of transformers, the second before."""
_SEQ_LEN = 2_048
"""The longest sequence of a model whose folder does not say it."""
_BUFFERS = ("rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias")
"""Ends of names that older versions of transformers saved beside the parameters."""


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
        _config_and_weights(folder)
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

        Tensors that are no parameters of the model are left out, and logged.

        Raises:
            ValueError: If one is missing or quantised, or a file cannot be read.
        """
        if not (self.folder / CONFIG).is_file():
            return meta_llama.read_weights(self.folder, self.config)
        theirs, maps = _read_tensors(self.folder), list(family_of(self.config).maps(self.config))
        used = {name for each in maps for name in each.theirs}
        if _NEOX_HEAD in used and _HEAD in theirs:
            theirs.setdefault(_NEOX_HEAD, theirs.pop(_HEAD))
        unused = [name for name in theirs if name not in used and not name.endswith(_BUFFERS)]
        if unused:
            more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
            LOG.warning(
                "%s: the model has no place for %s%s; left out", self.folder, unused[0], more
            )
        try:
            return to_ours(theirs, maps)
        except ValueError as error:
            raise ValueError(f"{self.folder}: {error}") from error


def read(folder: Path) -> Pretrained:
    """Return what a folder holds, without reading its weights.

    Raises:
        ValueError: If there is no model in it, one that no architecture here computes, one of which
            a file is missing or damaged, or one in several parts of Meta's format.
    """
    there = files(folder)
    if not (folder / CONFIG).is_file():
        fields, vocab_size = meta_llama.read_config(folder)
        architecture, config, seq_len = "dense", dense.Config(**fields), _SEQ_LEN
    else:
        record = _read_json(folder / CONFIG)
        try:
            family, fields = read_config(record)
            architecture, config = family.architecture, family.config(**fields)
        except ValueError as error:
            raise ValueError(f"{folder / CONFIG}: {error}") from error
        vocab_size = record["vocab_size"]
        seq_len = int(record.get("max_position_embeddings") or _SEQ_LEN)
        _check_embedding(there, _embedding_name(family, config), (vocab_size, config.d_model))
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
        ValueError: If it holds no model in a known format, or a file is missing.
    """
    there = _config_and_weights(folder)
    if there[1].name != INDEX:
        return there
    shards = [folder / name for name in sorted(set(_weight_map(folder).values()))]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(
            f"{folder}: has no {missing[0]}{more}, which {INDEX} names; take a complete download"
        )
    return [*there, *shards]


def _config_and_weights(folder: Path) -> list[Path]:
    """Return the config of a folder, and its weights or their index; raise if there are none."""
    for config, patterns in (
        (CONFIG, (WEIGHTS, INDEX)),
        (meta_llama.CONFIG, (meta_llama.WEIGHTS,)),
    ):
        there = [folder / name for name in patterns if (folder / name).is_file()]
        if (folder / config).is_file() and there:
            return [folder / config, *there]
    raise ValueError(
        f"{folder}: holds no model; expected {CONFIG} and {WEIGHTS} (Hugging Face), or "
        f"{meta_llama.CONFIG} and {meta_llama.WEIGHTS} (Meta)"
    )


def _weight_map(folder: Path) -> dict[str, str]:
    """Return name of a tensor -> file that holds it."""
    found = _read_json(folder / INDEX).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{folder / INDEX}: has no weight_map; take a complete download")
    return found


def _embedding_name(family: Family, config: Any) -> str:
    return next(m.theirs[0] for m in family.maps(config) if m.ours == "embedding.weight")


def _check_embedding(there: Sequence[Path], name: str, shape: tuple[int, int]) -> None:
    """Raise a ValueError if a file is cut off, or the embedding table has another shape.

    Args:
        there: What `files` returns.
        name: Of the table, in the files.
        shape: Tokens and width that the config says.
    """
    from safetensors import safe_open

    for file in there:
        if file.suffix != ".safetensors":
            continue
        with _whole(file), safe_open(file, framework="pt") as opened:
            names = opened.keys()
            found = tuple(opened.get_slice(name).get_shape()) if name in names else shape
        if found != shape:
            raise ValueError(
                f"{file}: {name} is {found}, and {CONFIG} says {shape} (vocab_size, hidden_size); "
                "take both from one download"
            )


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for file in files(folder):
        if file.suffix == ".safetensors":
            with _whole(file):
                tensors |= load_file(file)
    return tensors


@contextmanager
def _whole(file: Path) -> Iterator[None]:
    """Name a file of weights that cannot be read."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file}: cannot be read ({error}); take a complete download") from error


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
    if not isinstance(record, dict):
        raise ValueError(f"{path}: not a JSON object")
    return record


def _write_json(path: Path, record: Mapping[str, Any]) -> None:
    path.write_text(f"{json.dumps(record, indent=2)}\n", encoding="utf-8")
