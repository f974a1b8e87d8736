"""Language models for evaluation: log-likelihoods and greedy continuations.

All ranks take part.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from workloads.data.tokenizer import TextTokenizer
from workloads.decoding.decoder import Decoder, NotANumberError
from workloads.distributed.local_part import is_sharded
from workloads.distributed.process_group import RankGroup
from workloads.sharding.fsdp import only_forward
from workloads.sharding.table_shard import table_shards
from workloads.training import device
from workloads.training.device import MAX_LOGITS
from workloads.training.trained_model import TrainedModel

_PADDING = 0


@dataclass(frozen=True)
class _Piece:
    """Tokens to read in one pass, and the targets of the last positions."""

    request: int
    read: tuple[int, ...]
    targets: tuple[int, ...]


class _PromptBatch(NamedTuple):
    """Prompts that are continued together."""

    n_tokens: int
    """Tokens to add to each, at most."""
    requests: Sequence[int]
    """Their numbers among all prompts."""
    ids: Sequence[list[int]]


@dataclass(frozen=True)
class Score:
    """What a continuation scores after its context."""

    log_likelihood: float
    """Nats."""
    greedy: bool
    """Whether greedy decoding gives it."""


@dataclass(frozen=True)
class GreedyPrompt:
    """A text to be continued."""

    text: str
    n_tokens: int
    """Tokens to add, at most."""
    stops: Sequence[str] = ()
    """Texts that end the continuation, which does not hold them."""


@dataclass(eq=False)
class TextModel:
    """A model with its tokenizer.

    Text is tokenised as it stands, without a separator in front. What exceeds `seq_len` is cut from
    the left. Several ranks share the passes out, and each gets every score. The batches are those
    of one rank, so the numbers are, too.
    """

    model: nn.Module
    """In evaluation mode."""
    tokenizer: TextTokenizer
    seq_len: int
    """Tokens that the model reads at once, at most."""
    vocab_size: int
    here: torch.device = field(default_factory=lambda: torch.device("cpu"))
    bf16: bool = False
    """Whether to compute in bf16, as training does."""
    capture: bool = True
    """Whether generation may be captured as a CUDA graph, and bf16 take a copy of the matrices."""
    progress: Callable[[int, int], None] = lambda done, total: None
    """Told after every pass how many requests of how many are done."""
    world: RankGroup = field(default_factory=RankGroup)
    """Ranks that call this model together, with the same requests."""
    cut_prompts: set[tuple[int, ...]] = field(default_factory=set)
    """Ids of the prompts so far that did not fit; emptied by whoever begins a task."""

    def __post_init__(self) -> None:
        self._shards_dense = any(map(is_sharded, self.model.parameters()))
        # Ranks that share tables or parameters make every pass together.
        self._runs_together = self._shards_dense or bool(table_shards(self.model))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return self.tokenizer.encode([text])[0]

    def pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Return both as ids, cut where the ids of the context end: what `scores` takes."""
        read = self.encode(context)
        return read, self.encode(context + continuation)[len(read) :]

    def continuations(self, prompts: Sequence[GreedyPrompt]) -> list[str]:
        """Return the greedy continuations of prompts, up to a stop text or the separator.

        Raises:
            NotANumberError: On every rank, if the model gives NaN on one.
            ValueError: On every rank, if the tokens to add leave no room for a prompt, or the model
                cannot decode on one rank.
        """
        batches = self._prompt_batches(prompts)
        # Where ranks run together all make all passes: how many an answer takes nobody knows.
        sharers = RankGroup() if self._runs_together else self.world
        own = batches[sharers.rank :: sharers.size]
        n_own, done = sum(len(batch.requests) for batch in own), 0
        found: list[tuple[int, str]] = []
        with _refused_together(sharers):
            for batch in own:
                stops = [prompts[request].stops for request in batch.requests]
                texts = self._continue(batch, stops)
                found += zip(batch.requests, texts, strict=True)
                done += len(texts)
                self.progress(done, n_own)
        answers = dict(chain.from_iterable(sharers.all_gather_objects(found)))
        return [answers[request] for request in range(len(prompts))]

    def _prompt_batches(self, prompts: Sequence[GreedyPrompt]) -> list[_PromptBatch]:
        """Return prompts in batches of as many tokens to add, bounded in tokens.

        Raises:
            ValueError: If the tokens to add leave no room for a prompt.
        """
        by_n_tokens: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
        for request, prompt in enumerate(prompts):
            room = self.seq_len - prompt.n_tokens
            if room < 1:
                raise ValueError(
                    f"{prompt.n_tokens} tokens to add leave no room for a prompt in the model's "
                    f"{self.seq_len}; lower max_tokens of the task"
                )
            ids = self.encode(prompt.text) or [self.tokenizer.separator]
            if len(ids) > room:
                # As `scores` gets it, where whitespace at its end belongs to the continuation.
                self.cut_prompts.add(tuple(self.encode(prompt.text.rstrip())))
            by_n_tokens[prompt.n_tokens].append((request, ids[-room:]))
        batches = []
        for n_tokens, rows in by_n_tokens.items():
            # The longest first, for which the decoder makes room once.
            rows.sort(key=lambda row: (-len(row[1]), row))
            size = max(1, self._batch_tokens // (len(rows[0][1]) + n_tokens))
            for start in range(0, len(rows), size):
                requests, ids_of = zip(*rows[start : start + size], strict=True)
                batches.append(_PromptBatch(n_tokens, requests, ids_of))
        return batches

    @property
    def _batch_tokens(self) -> int:
        return max(1, MAX_LOGITS[self.here.type] // self.vocab_size)

    def scores(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[Score]:
        """Return what each continuation scores after its context, both as ids.

        Raises:
            NotANumberError: If the model gives NaN, the largest of which would be an answer.
            ValueError: On every rank, if the model refuses a pass on one.
        """
        # Per request: NLL, and how many pieces are not the greedy continuation.
        sums = torch.zeros(2, len(pairs), dtype=torch.float64)
        # Choices of one token share all that is read.
        together: dict[tuple[int, ...], list[_Piece]] = defaultdict(list)
        for index, (context, continuation) in enumerate(pairs):
            if len(context) + len(continuation) > self.seq_len + 1:
                self.cut_prompts.add(tuple(context))
            for piece in self._pieces(index, context, continuation):
                together[piece.read].append(piece)
        batches = list(self._batches(list(together)))
        own = batches[self.world.rank :: self.world.size]
        n_own, done = sum(len(together[read]) for batch in own for read in batch), 0
        with only_forward(self.model), _refused_together(self.world):
            for batch in own:
                pieces = [piece for read in batch for piece in together[read]]
                for piece, (nll, greedy) in zip(pieces, self._read(batch, together), strict=True):
                    sums[0, piece.request] += nll
                    sums[1, piece.request] += not greedy
                done += len(pieces)
                self.progress(done, n_own)
            if self._runs_together and len(own) * self.world.size < len(batches):
                # Others make one more pass.
                with device.autocast(bf16=self.bf16, device=self.here):
                    self._logits(torch.full((1, 1), _PADDING, device=self.here), [0], [0])
        if self.world.size > 1:
            sums = sums.to(self.here)
            self.world.all_reduce_sum([sums])
        if n_nan := int(sums[0].isnan().sum()):
            raise NotANumberError(
                f"the model gives NaN for {n_nan} of {len(pairs)} continuations: its training "
                "diverged or its weights are damaged; evaluate a trial whose loss is a number"
            )
        return [Score(-nll, wrong == 0) for nll, wrong in sums.t().tolist()]

    def _pieces(self, index: int, context: list[int], continuation: list[int]) -> Iterator[_Piece]:
        """Yield passes that predict every token of a continuation once.

        Each reads as many tokens before its last target as fit.
        """
        whole = context + continuation
        for start in range(0, len(continuation), self.seq_len):
            targets = continuation[start : start + self.seq_len]
            end = len(context) + start + len(targets)
            read = whole[max(0, end - 1 - self.seq_len) : end - 1]
            yield _Piece(index, tuple(read), tuple(targets))

    def _batches(self, rows: list[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
        """Yield rows of like length together, the longest first, bounded in padded tokens."""
        rows.sort(key=lambda row: (-len(row), row))
        start = 0
        while start < len(rows):
            size = max(1, self._batch_tokens // len(rows[start]))
            yield rows[start : start + size]
            start += size

    def _read(
        self, rows: list[tuple[int, ...]], together: dict[tuple[int, ...], list[_Piece]]
    ) -> list[tuple[float, bool]]:
        """Return per piece of these rows: NLL of its targets, and whether all are the argmax."""
        width = max(map(len, rows))
        # Padding on the right: no earlier position of a causal model can see it.
        padded = [[*row, *[_PADDING] * (width - len(row))] for row in rows]
        with device.autocast(bf16=self.bf16, device=self.here):
            read = torch.tensor(padded, device=self.here)
            owners: list[int] = []
            positions: list[int] = []
            targets: list[int] = []
            lengths: list[int] = []
            for number, row in enumerate(rows):
                for piece in together[row]:
                    n = len(piece.targets)
                    owners += [number] * n
                    positions += range(len(row) - n, len(row))
                    targets += piece.targets
                    lengths.append(n)
            logits = self._logits(read, owners, positions)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        target = torch.tensor(targets, device=self.here)
        nll = nn.functional.cross_entropy(logits, target, reduction="none").double().cpu()
        greedy = (logits.argmax(-1) == target).cpu()
        sums = [float(part.sum()) for part in torch.split(nll, lengths)]
        all_greedy = [bool(part.all()) for part in torch.split(greedy, lengths)]
        return list(zip(sums, all_greedy, strict=True))

    def _logits(self, read: Tensor, owners: list[int], positions: list[int]) -> Tensor:
        """Return the logits at some positions of some rows."""
        if self._shards_dense:  # FSDP gathers parameters for whole passes only
            whole: Tensor = self.model(read)
            return whole[owners, positions]
        # The head is as large as all else in a small model: only where something is predicted.
        x: Tensor = self.model.hidden(read)  # type: ignore[operator]
        logits: Tensor = self.model.logits(x[owners, positions][None])[0]  # type: ignore[operator]
        return logits

    def _continue(self, batch: _PromptBatch, stops: Sequence[Sequence[str]]) -> list[str]:
        """Return the greedy continuations of a batch, each up to one of its stop texts."""
        texts: list[str | None] = [None] * len(batch.ids)

        def ended(row: int, ids: Sequence[int]) -> bool:
            texts[row] = self._ended(ids, stops[row])
            return texts[row] is not None

        added = self._decoder.generate(batch.ids, n_tokens=batch.n_tokens, ended=ended)
        return [
            self.tokenizer.decode(ids) if text is None else text
            for ids, text in zip(added, texts, strict=True)
        ]

    @cached_property
    def _decoder(self) -> Decoder:
        return Decoder(self.model, bf16=self.bf16, capture=self.capture)

    def _ended(self, ids: Sequence[int], stops: Sequence[str]) -> str | None:
        """Return the text before the separator or the first stop text; None before either."""
        ended = ids[-1] == self.tokenizer.separator
        text = self.tokenizer.decode(ids[:-1] if ended else ids)
        found = [at for stop in stops if (at := text.find(stop)) >= 0]
        if found:
            return text[: min(found)]
        return text if ended else None


@contextmanager
def _refused_together(world: RankGroup) -> Iterator[None]:
    """Raise a ValueError of one rank on all, so that none waits for another. Collective.

    A NotANumberError is one on all.
    """
    refusal: ValueError | None = None
    try:
        yield
    except ValueError as error:
        refusal = error
    told = None if refusal is None else (isinstance(refusal, NotANumberError), str(refusal))
    refusals = world.all_gather_objects(told)
    if refusal is not None:
        raise refusal
    for is_nan, what in filter(None, refusals):
        raise NotANumberError(what) if is_nan else ValueError(what)


@contextmanager
def text_model(
    trained: TrainedModel,
    *,
    device_name: str = "auto",
    precision: str = "auto",
) -> Iterator[TextModel]:
    """Build a model to evaluate, on a device whose numerics are set for the time being.

    Args:
        trained: The model.
        device_name: auto, cpu or cuda.
        precision: auto, fp32 or bf16, as in training.

    Raises:
        ValueError: If the model has no tokenizer for text.
    """
    if trained.tokenizer is None:
        raise ValueError(
            "its data have words of their own and no tokenizer for text, so suites and questions "
            "cannot be asked; evaluate a trial that was trained on text"
        )
    with device.for_inference(device_name, precision) as (here, bf16), device.varying_shapes(here):
        yield TextModel(
            model=trained.build(here),
            tokenizer=trained.tokenizer,
            seq_len=trained.seq_len,
            vocab_size=trained.vocab_size,
            here=here,
            bf16=bf16,
        )
