"""Evaluation: held-out loss, recall of facts, bits of stored knowledge.

Every number is computed from sums over fixed batches, split between the ranks by batch, so it does
not depend on how many ranks there are beyond the order of a sum.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from workloads.data.corpus import Corpus, ProbeSet
from workloads.distributed.local_part import is_sharded
from workloads.distributed.process_group import RankGroup
from workloads.sharding.fsdp import only_forward
from workloads.sharding.table_shard import table_shards
from workloads.training.device import MAX_LOGITS

_PADDING = 0


class _Recall(NamedTuple):
    """Result of one probe, one entry per fact."""

    exact: NDArray[np.bool_]
    """Whether an accepted answer is the greedy continuation of its prompt."""
    nll: NDArray[np.float64]
    """Summed negative log-likelihood of the canonical answer's tokens, nats."""


def evaluate(
    model: nn.Module,
    corpus: Corpus,
    *,
    seq_len: int,
    total_params: int,
    world: RankGroup,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Return `valid/…`, `recall/…` and `knowledge/…` (docs/metrics.md, "Metrics").

    Collective: every rank calls it and gets the same numbers. `progress` is called between batches.
    A corpus without held-out windows, or without probes, gives no metric of that kind.
    """
    was_training = model.training
    model.eval()
    try:
        with only_forward(model):
            reader = _Reader(
                model,
                corpus.vocab_size,
                world=world,
                device=device,
                autocast=autocast,
                progress=progress,
            )
            metrics = _held_out(reader, corpus, seq_len=seq_len)
            for probe in corpus.probes:
                recall = _recall(reader, probe)
                metrics[f"recall/{probe.name}/exact_match"] = float(recall.exact.mean())
                metrics[f"recall/{probe.name}/answer_nll"] = float(recall.nll.mean())
                if probe.counts_as_knowledge:
                    bits = stored_bits(recall.nll, prior_bits=probe.prior_bits) * probe.scale
                    metrics["knowledge/stored_bits"] = bits
                    metrics["knowledge/bits_per_param"] = bits / total_params
            return metrics
    finally:
        model.train(was_training)


def stored_bits(nll: NDArray[np.float64], *, prior_bits: NDArray[np.float64]) -> float:
    """Return max(0, sum over facts of prior_bits - nll / ln 2).

    Floored in total and not per fact, so that guessing does not look like knowing: a model that is
    surely wrong about one fact pays for the one it guessed. Source: Allen-Zhu & Li 2024 (arXiv
    2404.05405), section 2, with the prior of each answer in the place of a uniform one.
    """
    return max(0.0, float(np.sum(prior_bits - nll / math.log(2))))


class _Reader:
    """Batched forward passes for evaluation, on all ranks together."""

    def __init__(
        self,
        model: nn.Module,
        vocab_size: int,
        *,
        world: RankGroup,
        device: torch.device,
        autocast: Callable[[], AbstractContextManager[object]],
        progress: Callable[[], None],
    ) -> None:
        self.world, self.device, self._progress = world, device, progress
        self._model, self._autocast = model, autocast
        self._runs_together = bool(table_shards(model)) or any(map(is_sharded, model.parameters()))
        self._batch_tokens = max(1, MAX_LOGITS[device.type] // vocab_size)

    def logits(self, tokens: NDArray[np.int64]) -> Tensor:
        """Return logits (rows, length, vocab_size) of token rows (rows, length)."""
        self._progress()
        with self._autocast():
            logits: Tensor = self._model(torch.from_numpy(tokens).to(self.device))
        return logits

    def batches(self, lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Yield this rank's batches of row numbers, bounded in tokens.

        Rows of like length are batched together.

        Ranks that share a memory table out read it together, and those that shard dense parameters
        gather them together, so one with a batch less than others makes a pass of one token in its
        place.
        """
        order = np.argsort(lengths, kind="stable")
        batches, start = [], 0
        while start < len(order):
            stop = start + 1
            # Sorted, so the next row is the longest of the batch and sets its padded width.
            while (
                stop < len(order)
                and (stop + 1 - start) * lengths[order[stop]] <= self._batch_tokens
            ):
                stop += 1
            batches.append(order[start:stop])
            start = stop
        mine = batches[self.world.rank :: self.world.size]
        yield from mine
        if self._runs_together and len(mine) * self.world.size < len(batches):
            self.logits(np.full((1, 1), _PADDING))

    def totals(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum over ranks of an array in which each filled its own entries."""
        total = torch.from_numpy(values)
        if self.world.size > 1:
            total = total.to(self.device)
            self.world.all_reduce_sum([total])
        return total.cpu().numpy()


def _held_out(reader: _Reader, corpus: Corpus, *, seq_len: int) -> dict[str, float]:
    windows = corpus.validation(seq_len=seq_len)
    if not len(windows):
        return {}
    nll = np.zeros(len(windows))
    for rows in reader.batches(np.full(len(windows), seq_len)):
        tokens = np.ascontiguousarray(windows[rows], dtype=np.int64)
        logits = reader.logits(tokens[:, :-1])
        targets = torch.from_numpy(tokens[:, 1:]).to(reader.device)
        losses = cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
        nll[rows] = losses.view(len(rows), -1).double().sum(1).cpu().numpy()
    loss = float(reader.totals(nll).sum() / (len(windows) * seq_len))
    metrics = {"valid/loss": loss}
    bytes_per_token = corpus.validation_bytes_per_token(seq_len=seq_len)
    if bytes_per_token is not None:
        metrics["valid/bits_per_byte"] = loss / math.log(2) / bytes_per_token
    return metrics


def _recall(reader: _Reader, probe: ProbeSet) -> _Recall:
    """Measure one probe in one teacher-forced pass per row.

    Exact match needs no decoding loop. If every answer token is the argmax given the true tokens
    before it, then greedy decoding emits the first, hence sees the true prefix again, hence emits
    the second, and so on. If one is not, greedy decoding leaves the answer at the first such token.
    Both directions hold token by token, so the two agree row by row (the answer's length is given:
    what follows it is not looked at).
    """
    rows = [
        np.concatenate([prompt, answer]).astype(np.int64)
        for prompt, answer in zip(probe.prompts, probe.answers, strict=True)
    ]
    n_answer = np.array([len(answer) for answer in probe.answers], dtype=np.int64)
    # The last token is only predicted, never read.
    lengths = np.array([len(row) - 1 for row in rows], dtype=np.int64)
    nll, exact = np.zeros(len(rows)), np.zeros(len(rows))
    for batch in reader.batches(lengths):
        batch_nll, batch_exact = _answers(reader, [rows[i] for i in batch], n_answer[batch])
        nll[batch], exact[batch] = batch_nll, batch_exact
    nll, exact = reader.totals(nll), reader.totals(exact)
    canonical = np.unique(probe.facts, return_index=True)[1]
    return _Recall(exact=np.maximum.reduceat(exact, canonical) > 0.5, nll=nll[canonical])


def _answers(
    reader: _Reader, rows: Sequence[NDArray[np.int64]], n_answer: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return per row: NLL of its last `n_answer` tokens, and whether all are the argmax."""
    width = max(len(row) for row in rows) - 1
    tokens = np.full((len(rows), width), _PADDING, dtype=np.int64)
    for i, row in enumerate(rows):
        # Padding on the right: no earlier position of a causal model can see it.
        tokens[i, : len(row) - 1] = row[:-1]
    logits = reader.logits(tokens)
    # One entry per answer token: its row, the position that predicts it, and its id.
    owner = np.repeat(np.arange(len(rows)), n_answer)
    position = np.concatenate(
        [np.arange(len(row) - 1 - n, len(row) - 1) for row, n in zip(rows, n_answer, strict=True)]
    )
    target = np.concatenate([row[-n:] for row, n in zip(rows, n_answer, strict=True)])
    here = reader.device
    picked = logits[torch.from_numpy(owner).to(here), torch.from_numpy(position).to(here)].float()
    targets = torch.from_numpy(target).to(here)
    token_nll = cross_entropy(picked, targets, reduction="none").double()
    wrong = (picked.argmax(-1) != targets).double()
    per_row = torch.stack([token_nll, wrong]).cpu().numpy()
    nll = np.bincount(owner, weights=per_row[0], minlength=len(rows))
    n_wrong = np.bincount(owner, weights=per_row[1], minlength=len(rows))
    return np.asarray(nll, np.float64), np.asarray(n_wrong == 0, np.float64)
