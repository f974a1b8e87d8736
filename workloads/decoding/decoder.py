"""Decoding engine: prompts in, continuations out, for every architecture.

Prompts of one length pass together and unpadded, so no mixer has to leave padding out of its state;
then all sequences go on together, one token a step, each at its own position.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workloads.decoding.bf16_copy import bf16_copy
from workloads.decoding.decode_step import DecodeStep
from workloads.decoding.fused_model import fused
from workloads.decoding.sampling import GREEDY, Sampling, uniform_numbers
from workloads.distributed.local_part import is_sharded
from workloads.layers.cache import Cache
from workloads.sharding.fsdp import only_forward
from workloads.training import device
from workloads.training.step.cuda_graph import waits_for_host

Ended = Callable[[int, Sequence[int]], bool]
"""Told a sequence's number and its tokens so far after each one; whether it is complete."""

_STEPS_AHEAD = {"cpu": 1, "cuda": 16}
"""Steps between two looks at the tokens: each makes the host wait for a GPU."""
_MEANINGLESS = -1
"""In place of a token that was chosen by logits that are no numbers."""


class NotANumberError(ValueError):
    """A model's logits are no numbers, so what it answers says nothing."""


class Decoder:
    """Continues prompts with one model."""

    def __init__(
        self,
        model: nn.Module,
        *,
        bf16: bool = False,
        capture: bool = True,
    ) -> None:
        """Make an engine.

        Args:
            model: Put into evaluation mode while it decodes. Its parameters may not change while
                the engine lives: on a GPU, bf16 has a copy of the matrices.
            bf16: Compute in bf16, as training does.
            capture: Replay steps as a CUDA graph where that can be done.
        """
        self.model = model
        self._device = next(model.parameters()).device
        self._bf16 = bf16
        self._sharded = any(map(is_sharded, model.parameters()))
        self._autocast = partial(device.autocast, bf16=bf16, device=self._device)
        self._capture = capture and self._can_be_captured()
        # With weights that lie as the step reads them.
        self._model = bf16_copy(model) if self._capture and bf16 else model
        self._step_model = fused(self._model) if self._capture and bf16 else self._model
        self._last: DecodeStep | None = None

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        n_tokens: int,
        sampling: Sampling = GREEDY,
        seeds: Sequence[int] | None = None,
        ended: Ended | None = None,
    ) -> list[list[int]]:
        """Return the continuation of every prompt.

        Ranks that hold parameters together must all call this, with the same arguments.

        Args:
            prompts: Token ids; lengths may differ.
            n_tokens: Tokens to add to each.
            sampling: How they are chosen.
            seeds: Of each sequence's draws, one for each prompt; None is its number in the batch.
            ended: Whether a sequence is complete; None: all get `n_tokens`.

        Raises:
            NotANumberError: If a token to return was chosen by logits that are NaN or infinite.
            ValueError: If a prompt is empty, if nothing is asked for, if seeds are more or fewer
                than prompts, or from an architecture that cannot decode token by token (`moe` while
                experts choose tokens) or not that far (a mixer of fixed length).
        """
        shortest = min(map(len, prompts), default=0)
        if shortest < 1 or n_tokens < 1:
            raise ValueError(
                f"decoding needs a prompt and at least one token to add, got {shortest} and "
                f"{n_tokens}"
            )
        if seeds is None:
            seeds = range(len(prompts))
        if len(seeds) != len(prompts):
            raise ValueError(
                f"each prompt needs a seed of its own, got {len(seeds)} seeds for {len(prompts)} "
                "prompts"
            )
        was_training = self.model.training
        self.model.eval()
        self._model.eval()
        try:
            with only_forward(self.model):
                # The last token is not read.
                step = self._step(len(prompts), max(map(len, prompts)) + n_tokens - 1, sampling)
                draws = None
                if not sampling.is_greedy:
                    draws = uniform_numbers(seeds, n_tokens).to(self._device)
                added = self._continue(step, prompts, n_tokens, draws, ended)
                self._last = step
                return added
        finally:
            self.model.train(was_training)

    def step_after(self, prompts: Sequence[Sequence[int]], n_tokens: int) -> DecodeStep:
        """Return a greedy step that goes on after prompts, with room for `n_tokens` more.

        The model has to be in evaluation mode, this call and those of the step within
        `only_forward`. A later call may reuse the step.
        """
        step = self._step(len(prompts), max(map(len, prompts)) + n_tokens, GREEDY)
        step.read(self._read_prompts(step.cache, prompts))
        self._last = step
        return step

    def _continue(
        self,
        step: DecodeStep,
        prompts: Sequence[Sequence[int]],
        n_tokens: int,
        draws: Float[Tensor, "batch n_tokens"] | None,
        ended: Ended | None,
    ) -> list[list[int]]:
        logits = self._read_prompts(step.cache, prompts)
        added = _Continuations(len(prompts), ended)
        for number in range(n_tokens):
            if draws is not None:
                step.uniform.copy_(draws[:, number])
            if number == 0:
                step.read(logits)
            else:
                step()
            added.append(step.tokens, step.largest)
            if added.waiting == _STEPS_AHEAD[self._device.type] and added.all_ended():
                break
        added.all_ended()
        return added.tokens

    def _read_prompts(
        self, cache: Cache, prompts: Sequence[Sequence[int]]
    ) -> Float[Tensor, "batch vocab_size"]:
        """Fill an empty cache, and return the logits of every prompt's next token."""
        groups: dict[int, list[int]] = defaultdict(list)
        for row, prompt in enumerate(prompts):
            groups[len(prompt)].append(row)
        rows, found = [], []
        for group in groups.values():
            alone = (
                cache
                if len(groups) == 1
                else Cache(len(group), cache.capacity, device=self._device)
            )
            tokens = torch.tensor([prompts[row] for row in group], device=self._device)
            with self._autocast():
                found.append(self._last_logits(tokens, alone))
            rows += group
            if alone is not cache:
                cache.put(torch.tensor(group, device=self._device), alone)
        back = torch.tensor(rows, device=self._device).argsort()
        return torch.cat(found)[back]

    def _last_logits(
        self, tokens: Int[Tensor, "batch seq"], cache: Cache
    ) -> Float[Tensor, "batch vocab_size"]:
        if self._sharded:  # FSDP gathers parameters for whole passes only
            whole: Tensor = self._model(tokens, cache)
            return whole[:, -1]
        x: Tensor = self._model.hidden(tokens, cache)  # type: ignore[operator]
        last: Tensor = self._model.logits(x[:, -1:])  # type: ignore[operator]
        return last[:, 0]

    def _step(self, batch: int, capacity: int, sampling: Sampling) -> DecodeStep:
        """Return a step with an empty cache: the last one, where it fits.

        The caller keeps it once it has served. One that was refused has more room than the model
        may read, and one whose capture failed would stay slow.
        """
        step, self._last = self._last, None
        if step is not None and step.fits(batch, capacity, sampling):
            step.cache.clear()
            return step
        step = None  # its cache is let go of before the next is made
        cache = Cache(batch, capacity, device=self._device)
        step = DecodeStep(self._step_model, cache, sampling, autocast=self._autocast)
        if self._capture and capacity > 1:
            step.capture()
        return step

    def _can_be_captured(self) -> bool:
        if self._device.type != "cuda" or self._sharded:
            return False
        return not waits_for_host(self.model, bf16=self._bf16)


class _Continuations:
    """Tokens added to every sequence, of which the last ones may still be on the device."""

    def __init__(self, batch: int, ended: Ended | None) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(batch)]
        self._ended, self._open = ended, set(range(batch))
        self._on_device: list[tuple[Tensor, Tensor]] = []

    @property
    def waiting(self) -> int:
        """Steps that nobody has looked at; 0 where nobody asks whether sequences end."""
        return len(self._on_device) if self._ended is not None else 0

    def append(self, tokens: Int[Tensor, "batch 1"], largest: Float[Tensor, "batch 1"]) -> None:
        """Add a copy of one token of every sequence, and of the largest of its logits."""
        self._on_device.append((tokens.clone(), largest.clone()))

    def all_ended(self) -> bool:
        """Look at the tokens; return whether all sequences are complete.

        What follows a sequence's end is dropped.

        Raises:
            NotANumberError: If a token before that was chosen by logits that are no numbers.
        """
        if not self._on_device:
            return not self._open
        chosen, largest = (torch.cat(each, dim=1) for each in zip(*self._on_device, strict=True))
        self._on_device.clear()
        # In one tensor, for which the host waits once.
        new = chosen.masked_fill(~largest.isfinite(), _MEANINGLESS).tolist()
        for row, tokens in enumerate(new):
            for token in tokens:
                if row not in self._open:
                    break
                if token == _MEANINGLESS:
                    raise NotANumberError(
                        "the model gives logits that are NaN or infinite: its training diverged or "
                        "its weights are damaged; use a trial whose loss is a number"
                    )
                self.tokens[row].append(token)
                if self._ended is not None and self._ended(row, self.tokens[row]):
                    self._open.discard(row)
        return not self._open
