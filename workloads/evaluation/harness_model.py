"""Language models as lm-evaluation-harness sees them: log-likelihoods and greedy continuations."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from lm_eval.api.model import TemplateLM
from torch import Tensor, nn

from workloads.data.tokenizer import TextTokenizer
from workloads.decoding.decoder import Decoder
from workloads.distributed.local_part import is_sharded
from workloads.distributed.process_group import RankGroup
from workloads.sharding.fsdp import only_forward
from workloads.sharding.table_shard import table_shards
from workloads.training import device
from workloads.training.device import MAX_CPU_LOGITS

_BATCH_LOGITS = {"cpu": MAX_CPU_LOGITS, "cuda": 2**28}
"""Tokens of one pass times vocabulary, at most."""
_ANSWER_TOKENS = 256
"""Tokens of a greedy continuation where the task does not say, as the harness has it."""
_PADDING = 0


@dataclass(frozen=True)
class _Piece:
    """Tokens to read in one pass, and the targets of the last positions."""

    request: int
    read: tuple[int, ...]
    targets: tuple[int, ...]


@dataclass(frozen=True)
class _Score:
    """Sum over the pieces of one request."""

    log_likelihood: float
    greedy: bool


@dataclass(eq=False)
class HarnessModel(TemplateLM):  # type: ignore[misc]
    """A model with its tokenizer.

    Text is tokenised as it stands, without a separator in front, as the harness's own model classes
    do with a tokenizer that adds none. What exceeds `seq_len` is cut from the left.

    Several ranks share the passes out, and each gets every score. The batches are those of one
    rank, so the numbers are, too. The harness sees one rank.
    """

    model: nn.Module
    """In evaluation mode."""
    text_tokenizer: TextTokenizer
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
    n_truncated: int = 0
    """Requests so far whose prompt was cut."""

    def __post_init__(self) -> None:
        super().__init__()
        self._device = self.here
        self._shards_dense = any(map(is_sharded, self.model.parameters()))
        # Ranks that share tables or parameters make every pass together.
        self._runs_together = self._shards_dense or bool(table_shards(self.model))

    @property
    def eot_token_id(self) -> int:
        """Separator of documents."""
        return self.text_tokenizer.separator

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Return the ids of a text."""
        return self.text_tokenizer.encode([string])[0]

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        pairs = [(context, continuation) for _, context, continuation in requests]
        return [(score.log_likelihood, score.greedy) for score in self._scores(pairs)]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of whole texts, each begun by the separator.

        Longer ones are read in windows that share one token.
        """
        texts = [request.args[0] for request in requests]
        pairs = [([self.eot_token_id], ids) for ids in self.text_tokenizer.encode(texts)]
        return [score.log_likelihood for score in self._scores(pairs)]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the greedy continuations of prompts, up to a stop text or the separator.

        Raises:
            ValueError: If the tokens to add leave no room for a prompt.
        """
        answers = [""] * len(requests)
        kinds: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
        for index, request in enumerate(requests):
            prompt, settings = request.args
            n_tokens = int(settings.get("max_gen_toks", _ANSWER_TOKENS))
            room = self.seq_len - n_tokens
            if room < 1:
                raise ValueError(
                    f"{n_tokens} tokens to add leave no room for a prompt in the model's "
                    f"{self.seq_len}; lower max_tokens of the task"
                )
            ids = self.tok_encode(prompt) or [self.eot_token_id]
            self.n_truncated += len(ids) > room
            kinds[n_tokens].append((index, ids[-room:]))
        split: list[tuple[int, list[tuple[int, list[int]]]]] = []
        for n_tokens, rows in kinds.items():
            # The longest first, for which the decoder makes room once.
            rows.sort(key=lambda row: (-len(row[1]), row))
            size = max(1, self._batch_tokens // (len(rows[0][1]) + n_tokens))
            split += [(n_tokens, rows[i : i + size]) for i in range(0, len(rows), size)]
        # Where ranks run together all make all passes: how many an answer takes nobody knows.
        alone = RankGroup() if self._runs_together else self.world
        own = split[alone.rank :: alone.size]
        n_own, done = sum(len(batch) for _, batch in own), 0
        found: list[tuple[int, str]] = []
        for n_tokens, batch in own:
            stops = [_stops(requests[index]) for index, _ in batch]
            texts = self._continue([ids for _, ids in batch], n_tokens, stops)
            found += [(index, text) for (index, _), text in zip(batch, texts, strict=True)]
            done += len(batch)
            self.progress(done, n_own)
        for index, text in chain.from_iterable(alone.all_gather_objects(found)):
            answers[index] = text
        return answers

    @property
    def _batch_tokens(self) -> int:
        return max(1, _BATCH_LOGITS[self.here.type] // self.vocab_size)

    def _scores(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[_Score]:
        """Return what each continuation scores after its context."""
        # Per request: NLL, and how many pieces are not the greedy continuation.
        sums = torch.zeros(2, len(pairs), dtype=torch.float64)
        # Choices of one token share all that is read.
        together: dict[tuple[int, ...], list[_Piece]] = defaultdict(list)
        for index, (context, continuation) in enumerate(pairs):
            self.n_truncated += len(context) + len(continuation) > self.seq_len + 1
            for piece in self._pieces(index, context, continuation):
                together[piece.read].append(piece)
        batches = list(self._batches(list(together)))
        own = batches[self.world.rank :: self.world.size]
        n_own, done = sum(len(together[read]) for batch in own for read in batch), 0
        with only_forward(self.model):
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
        return [_Score(-nll, wrong == 0) for nll, wrong in sums.t().tolist()]

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
        sums = [float(part.sum()) for part in nll.split(lengths)]  # type: ignore[no-untyped-call]
        all_greedy = [bool(part.all()) for part in greedy.split(lengths)]  # type: ignore[no-untyped-call]
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

    def _continue(
        self, prompts: list[list[int]], n_tokens: int, stops: list[list[str]]
    ) -> list[str]:
        """Return greedy continuations of prompts."""
        texts: list[str | None] = [None] * len(prompts)

        def ended(row: int, ids: Sequence[int]) -> bool:
            texts[row] = self._ended(ids, stops[row])
            return texts[row] is not None

        if self._shards_dense:
            added = self._continue_in_whole_passes(prompts, n_tokens, ended)
        else:
            added = self._decoder.generate(prompts, n_tokens=n_tokens, ended=ended)
        return [
            self.text_tokenizer.decode(ids) if text is None else text
            for ids, text in zip(added, texts, strict=True)
        ]

    def _continue_in_whole_passes(
        self, prompts: list[list[int]], n_tokens: int, ended: Callable[[int, Sequence[int]], bool]
    ) -> list[list[int]]:
        """Return what is added to prompts greedily, for parameters that only passes gather."""
        added = [list[int]() for _ in prompts]
        waiting = set(range(len(prompts)))
        with only_forward(self.model):
            for _ in range(n_tokens):
                rows = [[*prompt, *more] for prompt, more in zip(prompts, added, strict=True)]
                width = max(map(len, rows))
                padded = [[*row, *[_PADDING] * (width - len(row))] for row in rows]
                last = [len(row) - 1 for row in rows]
                with device.autocast(bf16=self.bf16, device=self.here):
                    read = torch.tensor(padded, device=self.here)
                    likeliest = self._logits(read, list(range(len(rows))), last).argmax(-1).tolist()
                for row in sorted(waiting):
                    added[row].append(likeliest[row])
                    if ended(row, added[row]):
                        waiting.discard(row)
                if not waiting:
                    break
        return added

    @cached_property
    def _decoder(self) -> Decoder:
        return Decoder(self.model, bf16=self.bf16, capture=self.capture)

    def _ended(self, ids: Sequence[int], stops: list[str]) -> str | None:
        """Return the text before the separator or the first stop text; None before either."""
        ended = ids[-1] == self.eot_token_id
        text = self.text_tokenizer.decode(ids[:-1] if ended else ids)
        found = [at for stop in stops if (at := text.find(stop)) >= 0]
        if found:
            return text[: min(found)]
        return text if ended else None


def _stops(request: Any) -> list[str]:
    until = request.args[1].get("until") or []
    return [until] if isinstance(until, str) else list(until)
