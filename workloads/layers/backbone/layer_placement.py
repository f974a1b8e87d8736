"""Which layers hold a memory."""

from collections.abc import Sequence


def centred(n_layers: int, *, count: int, stride: int, first: int | None) -> tuple[int, ...]:
    """Return `count` layers `stride` apart, from `first` on, around the middle if None (Berges et al. 2024)."""
    if first is None:
        first = n_layers // 2 - stride * (count - 1) // 2
    return tuple(range(first, first + stride * count, stride))


def check_placement(layers: Sequence[int], *, n_layers: int, where: str) -> None:
    """Refuse layers that are not there.

    Raises:
        ValueError: Naming `where`, the fields that say which layers, and the nearest layers that work.
    """
    if list(layers) != sorted(set(layers)):
        raise ValueError(
            f"{where} must be rising without repetition, got {list(layers)}; write {sorted(set(layers))}"
        )
    if layers[0] < 0 or layers[-1] >= n_layers:
        nearest = sorted({min(max(layer, 0), n_layers - 1) for layer in layers})
        raise ValueError(
            f"{where} must stay within 0..n_layers - 1 ({n_layers - 1}), got {list(layers)}; the nearest are {nearest}"
        )


def check_layer(layer: int | None, *, n_layers: int, where: str) -> None:
    """Refuse a layer that is not there; None is the middle one and always is.

    Raises:
        ValueError: Naming `where`, the field that says which layer, and the nearest layer that works.
    """
    if layer is not None and not 0 <= layer < n_layers:
        nearest = min(max(layer, 0), n_layers - 1)
        raise ValueError(
            f"{where} must stay within 0..n_layers - 1 ({n_layers - 1}), got {layer}; the nearest is {nearest}"
        )
