"""Corpora of a trial as MLflow datasets: name, digest and origin. Pure."""

import hashlib
import os.path
from dataclasses import dataclass
from pathlib import Path

from orchestrator.records.trial_spec import TrialSpec, canonical_json

MAX_DIGEST = 36
"""Characters of a digest that MLflow takes."""
NO_CORPUS = frozenset({"tokenizer", "templates"})
"""Fields that name files which are read, but not learnt from."""
_HUB = "hf:"
CONTEXTS = {"valid_path": "validation"}
"""What a field's text is for, where that is not training."""


@dataclass(frozen=True, kw_only=True)
class CorpusDataset:
    """One data set of a run, with the strings that MLflow stores."""

    name: str
    digest: str
    """Beginning of the SHA-256 of files' content, or of the recipe of generated text."""
    source_type: str
    """`local` for files, `hugging_face` for the hub, `code` for generated text: kinds of
    `mlflow.data`."""
    source: str
    """JSON: where it lies, or the recipe."""
    profile: str
    """JSON: all paths, or all settings of generated text."""
    context: str
    """What it is for: training or validation."""


def trial_datasets(spec: TrialSpec) -> tuple[CorpusDataset, ...]:
    """Return the corpora that a trial reads; one that is generated has its recipe as source."""
    fields = [key for key in spec.data_sha256 if key not in NO_CORPUS]
    if fields:
        return tuple(_of_files(spec, field) for field in sorted(fields))
    # The tokenizer's content, not its path, as in the trial's identity.
    recipe = spec.identity()["data"]
    source = {"tags": {key: str(value) for key, value in recipe.items()}}
    return (
        CorpusDataset(
            name=str(spec.data["source"]),
            digest=hashlib.sha256(canonical_json(recipe).encode()).hexdigest()[:MAX_DIGEST],
            source_type="code",
            source=canonical_json(source),
            profile=canonical_json(recipe),
            context="training",
        ),
    )


def _of_files(spec: TrialSpec, field: str) -> CorpusDataset:
    written = spec.data[field]
    paths = [written] if isinstance(written, str) else list(written)
    remote = [path for path in paths if path.startswith(_HUB)]
    if remote:
        named = remote[0].removeprefix(_HUB).removeprefix("//").removeprefix("datasets/")
        common = "/".join(named.split("@")[0].split("/")[:2])
    else:
        common = paths[0] if len(paths) == 1 else os.path.commonpath(paths)
    return CorpusDataset(
        name=Path(common).name or str(spec.data["source"]),
        digest=spec.data_sha256[field][:MAX_DIGEST],
        source_type="hugging_face" if remote else "local",
        source=canonical_json({"path": common} if remote else {"uri": common}),
        # Settings are no part of it: MLflow keeps one data set of each name and digest.
        profile=canonical_json({"paths": paths, "sha256": spec.data_sha256[field]}),
        context=CONTEXTS.get(field, "training"),
    )
