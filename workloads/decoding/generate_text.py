"""Texts that a trained model continues prompts with."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from workloads.decoding.decoder import Decoder
from workloads.decoding.sampling import Sampling
from workloads.training import device

_BATCH = 64
"""Prompts that go on together."""
MOST_TOKENS = 64
"""Tokens to add where nobody says how many."""


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """What follows one prompt."""

    prompt: str
    text: str
    n_tokens: int
    """Tokens added, the separator not counted."""
    ended: bool
    """Whether the model ended the document; otherwise it had no more tokens to add."""


def _read_prompts(
    trained: Any, prompts: Sequence[str], n_tokens: int | None
) -> tuple[list[list[int]], list[int]]:
    """Return the tokens of every prompt, and how many to add to each.

    An empty prompt is the start of a document.

    Raises:
        ValueError: If the model has no tokenizer for text, or a prompt is too long.
    """
    tokenizer = trained.tokenizer
    if tokenizer is None:
        raise ValueError(
            "its data have words of their own and no tokenizer for text, so it cannot read a "
            "prompt; generate with a trial of source text or triples"
        )
    read = [ids or [tokenizer.separator] for ids in tokenizer.encode(list(prompts))]
    most = []
    for number, ids in enumerate(read, start=1):
        # The last token is not read.
        room = trained.seq_len + 1 - len(ids)
        if room < (n_tokens or 1):
            fix = f" or lower --max-tokens to {room}" if room > 0 else ""
            raise ValueError(
                f"prompt {number}: {len(ids)} token{'s' * (len(ids) != 1)} and {n_tokens or 1} to "
                f"add are more than the {trained.seq_len} that the model reads at once; "
                f"shorten it{fix}"
            )
        most.append(n_tokens or min(MOST_TOKENS, room))
    return read, most


def continuations(
    trained: Any,
    prompts: Sequence[str],
    *,
    n_tokens: int | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    device_name: str = "auto",
    precision: str = "auto",
) -> Iterator[Continuation]:
    """Yield the continuation of every prompt, up to the model's end of a document.

    Args:
        trained: A `TrainedModel`.
        prompts: Texts; an empty one begins a document.
        n_tokens: Most tokens to add to each. None: as many as the model reads at once with the
            prompt, at most MOST_TOKENS.
        temperature: See `Sampling`, as the next two.
        top_k: Most probable tokens that are drawn from.
        top_p: Probability that these have together.
        seed: Of the first prompt's draws; each further one has the next.
        device_name: auto, cpu or cuda.
        precision: auto, fp32 or bf16, as in training.

    Raises:
        NotANumberError: If the model gives NaN or infinite logits.
        ValueError: If the model has no tokenizer for text, or a prompt is too long.
    """
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    # Before the model is built: a mistake in a prompt shall not take that long to tell.
    read, most = _read_prompts(trained, prompts, n_tokens)
    tokenizer = trained.tokenizer
    with device.for_inference(device_name, precision) as (here, bf16):
        decoder = Decoder(trained.build(here), bf16=bf16)
        for start in range(0, len(read), _BATCH):
            batch = range(start, min(start + _BATCH, len(read)))
            added: dict[int, list[int]] = {}
            # Those with as much room go on together: a mixer of fixed length takes no more.
            for room in {most[i] for i in batch}:
                group = [i for i in batch if most[i] == room]
                found = decoder.generate(
                    [read[i] for i in group],
                    n_tokens=room,
                    sampling=sampling,
                    seeds=[seed + i for i in group],
                    ended=lambda row, ids: ids[-1] == tokenizer.separator,
                )
                added.update(zip(group, found, strict=True))
            for i in batch:
                ids = added[i]
                ended = ids[-1] == tokenizer.separator
                ids = ids[:-1] if ended else ids
                text = tokenizer.decode(ids)
                yield Continuation(prompt=prompts[i], text=text, n_tokens=len(ids), ended=ended)
