"""Manifest of a folder of prepared tokens: `manifest.json`.

It is written last, so a folder that has it is complete. A trial's identity holds the manifest's
hash. It therefore says what the tokens are and nothing about where or when they were made:
preparing the same text again gives the same manifest.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workloads.data.readers.problems import DataError
from workloads.data.token_shards import TokenShards, shard_name

MANIFEST = "manifest.json"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class TokenManifest:
    """What a folder of prepared tokens holds."""

    version: int = VERSION
    dtype: str
    """uint16, uint32 or, of foreign files, int32."""
    vocab_size: int
    """Every token id is below."""
    tokenizer: Mapping[str, Any] | None
    """`file`, `sha256`, `separator` (id) and `separator_text`; None: tokens came without one."""
    sources: tuple[Mapping[str, Any], ...]
    """Per input: `name`, `bytes`, `sha256`, `documents`."""
    split: Mapping[str, Any]
    """How documents were held out: `rule`, and its numbers."""
    splits: Mapping[str, Mapping[str, Any]]
    """train and valid: `tokens`, `documents`, `bytes` of text, `shards` (file name -> SHA-256)."""
    contamination: tuple[Mapping[str, Any], ...] = ()
    """Per evaluation file: `name`, `sha256`, `items`, `too_short`, `contaminated`."""

    def save(self, folder: Path) -> None:
        """Write the manifest in one step; the folder is complete from then on."""
        scratch = folder / f"{MANIFEST}.tmp"
        scratch.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")
        scratch.replace(folder / MANIFEST)

    @classmethod
    def load(cls, path: Path) -> "TokenManifest":
        """Read a manifest.json.

        Raises:
            DataError: If it is missing, no manifest, or of another version.
        """
        fix = "give a folder that `memscale data prepare` has finished"
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError([f"{path}: does not exist; {fix}"]) from None
        except ValueError as error:
            raise DataError([f"{path}: is not JSON ({error}); {fix}"]) from error
        version = stored.get("version") if isinstance(stored, dict) else None
        if version != VERSION:
            raise DataError(
                [f"{path}: version is {version}, this program reads {VERSION}; prepare it again"]
            )
        stored["sources"] = tuple(stored["sources"])
        stored["contamination"] = tuple(stored["contamination"])
        return cls(**stored)

    @property
    def bytes_per_token(self) -> float | None:
        """Bytes of held-out text per token; None where the tokens came without text."""
        valid = self.splits["valid"]
        if not valid["tokens"] or valid["bytes"] is None:
            return None
        return float(valid["bytes"] / valid["tokens"])

    def shard_hashes(self) -> dict[str, str]:
        """Return file name -> SHA-256 of each shard.

        Shards of foreign files are links to the sources, in their order; what is held out ends the
        last one.
        """
        hashes = {n: sha for split in self.splits.values() for n, sha in split["shards"].items()}
        if hashes:
            return hashes
        files = [str(source["sha256"]) for source in self.sources]
        train = {shard_name("train", number): sha for number, sha in enumerate(files)}
        return train | {shard_name("valid", 0): files[-1]}


def load_split(folder: Path, manifest: TokenManifest, name: str) -> TokenShards:
    """Map the tokens of a split.

    Raises:
        DataError: If a shard is missing or damaged, or tokens are missing.
    """
    shards = TokenShards.load(folder, name)
    expected = manifest.splits[name]["tokens"]
    if len(shards) != expected:
        raise DataError(
            [
                f"{folder / name}.json: lists {len(shards):,} tokens, the manifest {expected:,}; "
                "prepare the data again"
            ]
        )
    return shards
