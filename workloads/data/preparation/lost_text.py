"""Check that a given tokenizer has tokens for the text.

Unknown tokens are easy to predict, and dropped text needs no prediction: either makes bits per byte
low, whatever the model.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from workloads.data.readers.problems import DataError
from workloads.data.remarks import lost_text
from workloads.data.tokenizer import TextTokenizer

LOST_SHARE = 0.01
"""Share above which a tokenizer is refused."""
_FILES = 8
"""Files that are looked at, at most, spread evenly: each of the hub costs a request or several."""
LOOKED_AT = 200
"""First documents of each."""
_CHARS = 4_000
"""Beginning of each document."""


def check_lost_text(
    path: Path,
    tokenizer: TextTokenizer,
    files: Sequence[Callable[[], Iterator[str]]],
    log: Callable[[str], None],
) -> None:
    """Refuse a tokenizer that has no tokens for much of the text; remark on one with some.

    Args:
        path: What the tokenizer was loaded from.
        tokenizer: The tokenizer.
        files: Each yields the documents of a file.
        log: Takes the remark.

    Raises:
        DataError: If more than LOST_SHARE of a sample of the text is lost.
    """
    step = max(1, -(-len(files) // _FILES))
    sample = [
        text[:_CHARS] for documents in files[::step] for text in islice(documents(), LOOKED_AT)
    ]
    share = tokenizer.lost_share(sample)
    if share > LOST_SHARE:
        raise DataError(
            [
                f"{path}: has no tokens for {share:.1%} of the text (unknown or dropped), which "
                "makes bits per byte too low; use a tokenizer that knows every byte, or train one"
            ]
        )
    for remark in lost_text(share):
        log(remark)
