"""End of a benchmark where there is no GPU, in a sentence."""

import sys

import torch


def require_gpu(device: str | None = None) -> None:
    """Exit where a script needs a GPU and torch sees none.

    Args:
        device: Of the script's option `--device`; None if it has none.
    """
    if device == "cpu" or torch.cuda.is_available():
        return
    rehearse = "" if device is None else "; --device cpu rehearses it"
    sys.exit(f"needs a GPU, and torch sees none{rehearse}")
