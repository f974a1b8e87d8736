"""Remarks on a corpus: what is too small for its purpose."""

FEW_HELD_OUT_TOKENS = 50_000
"""Held-out tokens below which a remark is made: by them alone models are compared."""
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


def unused_tokens(size: int, *, vocab_size: int, fix: str) -> list[str]:
    """Say if rows of the embedding stand for no token: they count in all sizes and costs."""
    unused = vocab_size - size
    if unused <= UNUSED_SHARE * vocab_size:
        return []
    return [
        f"tokenizer: {size:,} tokens; vocab_size {vocab_size:,} leaves {unused:,} unused; {fix}"
    ]
