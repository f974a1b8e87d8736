"""Training start from a model's weights, also for a model with added parts."""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable

import torch
from torch import nn

from workloads.checkpoint.huggingface import folder
from workloads.data.cache import content_sha256
from workloads.data.file_hashes import WHAT_TO_DO, combined
from workloads.distributed.local_part import copy_into_local
from workloads.training.rank_job import RankJob

LOG = logging.getLogger(__name__)


def start_from(model: nn.Module, job: RankJob) -> None:
    """Write the weights of `job.from_pretrained` over those of the same name.

    What the folder does not have keeps its initial values: a memory that is added to a trained
    model. What the model does not have is left out. Both are logged. The head of a model that does
    not tie it begins as the embedding table of a folder that does.

    Raises:
        ValueError: If the folder changed since submission, holds another shape, or more than
            feed-forward blocks that the model has no place for.
    """
    assert job.from_pretrained is not None, "asked for by the caller"
    pretrained = folder.read(job.from_pretrained)
    digests = [content_sha256(file, job.cache) for file in pretrained.files]
    if job.from_pretrained_sha256 not in (None, combined(digests)):
        raise ValueError(
            f"model.from_pretrained: {pretrained.folder} changed since this trial was submitted; "
            f"{WHAT_TO_DO}"
        )
    weights, named = pretrained.weights(), dict(model.named_parameters())
    untied = pretrained.config.tied_embeddings and "head.weight" in named
    if untied:
        weights["head.weight"] = weights["embedding.weight"]
    shared = _shared(named, weights)
    unused = [name for name in weights if name not in shared]
    lost = [name for name in unused if ".feed_forward" not in name]
    if lost:
        raise ValueError(
            f"model.from_pretrained: {pretrained.folder} has {lost[0]}, for which this model has "
            f"no place; use {pretrained.architecture}, or an architecture on the same backbone"
        )
    with torch.no_grad():
        for name in shared:
            value, saved = named[name], weights[name]
            if value.shape != saved.shape:
                raise ValueError(
                    f"model.from_pretrained: {name} is {tuple(saved.shape)} in "
                    f"{pretrained.folder}, the model's is {tuple(value.shape)}; take over its sizes"
                )
            copy_into_local(value, saved)
    LOG.info(
        "%d of %d parameters start from %s%s%s",
        len(shared),
        len(named),
        pretrained.folder,
        ", head.weight from its tied embedding.weight" if untied else "",
        _others([name for name in named if name not in shared], unused),
    )


def _shared(named: Collection[str], weights: Collection[str]) -> list[str]:
    """Return the names of parameters that mean the same on both sides.

    Another block in the place of a feed-forward block may have parts of the same names, which mean
    something else. So a pretrained block is taken whole or not at all; ours may add parts to it.
    """
    ours, theirs = _by_block(named), _by_block(weights)
    there = {
        name
        for block in ours.keys() & theirs.keys()
        if not block or theirs[block] <= ours[block]
        for name in ours[block] & theirs[block]
    }
    return [name for name in named if name in there]


def _by_block(names: Iterable[str]) -> dict[str, set[str]]:
    """Return feed-forward block -> names of its parameters; of all others under no name."""
    blocks: dict[str, set[str]] = defaultdict(set)
    for name in names:
        before, found, _ = name.partition(".feed_forward.")
        blocks[before if found else ""].add(name)
    return dict(blocks)


def _others(new: list[str], unused: list[str]) -> str:
    parts = [
        f"{what}: {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        for what, names in (("new", new), ("not used", unused))
        if names
    ]
    return f" ({'; '.join(parts)})" if parts else ""
