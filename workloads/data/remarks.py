"""Remarks on a corpus: what is too small for its purpose."""

FEW_HELD_OUT_TOKENS = 50_000
"""Held-out tokens below which a remark is made: by them alone models are compared."""
LOST_TEXT_SHARE = 1e-4
"""Share of text without a token from which on a remark is made; less shows in no result."""
UNUSED_SHARE = 0.01
"""Share of a vocabulary without a token above which a remark is made; less is rounding up."""


def few_held_out(tokens: float, *, fix: str, about: str = "") -> list[str]:
    """Say if so few tokens are held out that their choice decides between models."""
    if tokens >= FEW_HELD_OUT_TOKENS:
        return []
    return [
        f"held-out text: {about}{tokens:,.0f} tokens are few: models are compared by their loss on "
        f"them alone; {fix} for {FEW_HELD_OUT_TOKENS:,} or more"
    ]


def trained_on(n_documents: int, *, fix: str) -> list[str]:
    """Say if documents are held out and trained on: the loss on them is no loss on new text."""
    if not n_documents:
        return []
    number = f"{n_documents:,} document{'s' if n_documents > 1 else ''}"
    return [f"held-out text: {number} of the training text stand there too; {fix}"]


def limited_mixture(tokens: float, *, limited_by: object, fix: str) -> str:
    """Say that one part of a mixture holds out so little that evaluations shrink to it."""
    return (
        f"held-out text: {limited_by} has so little that evaluations in the shares of training "
        f"take {tokens:,.0f} tokens in all; {fix}"
    )


def lost_text(share: float) -> list[str]:
    """Say if a tokenizer has no tokens for some of the text."""
    if share < LOST_TEXT_SHARE:
        return []
    return [
        f"tokenizer: has no tokens for {share:.2%} of the text (unknown or dropped); bits per byte "
        "are too low by about as much"
    ]


def unused_tokens(size: int, *, vocab_size: int, fix: str) -> list[str]:
    """Say if rows of the embedding stand for no token: they count in all sizes and costs."""
    unused = vocab_size - size
    if unused <= UNUSED_SHARE * vocab_size:
        return []
    return [
        f"tokenizer: {size:,} tokens; vocab_size {vocab_size:,} leaves {unused:,} unused; {fix}"
    ]
