"""Placement of memory layers in the backbone."""

from collections.abc import Sequence

from workloads.field_error import FieldError


def centred(n_layers: int, *, count: int, stride: int, first: int | None) -> tuple[int, ...]:
    """Return `count` layers `stride` apart, from `first` on.

    Around the middle if None (Berges et al. 2024).
    """
    if first is None:
        first = n_layers // 2 - stride * (count - 1) // 2
    return tuple(range(first, first + stride * count, stride))


def check_placement(
    layers: Sequence[int],
    *,
    n_layers: int,
    field: str,
    others: tuple[str, ...] = (),
    instead: str = "",
) -> None:
    """Refuse layers that are not there.

    Args:
        layers: Which layers, from 0.
        n_layers: Of the model.
        field: The field that says which layers.
        others: Fields that say it together with that one.
        instead: What to do for no layer at all.

    Raises:
        FieldError: Naming the nearest layers that work.
    """
    if not layers:
        raise FieldError(field, "must name at least one layer", "none", instead)
    got, together = list(layers), f"with {' and '.join(others)} " if others else ""
    if got != sorted(set(got)):
        fix = f"write {sorted(set(got))}"
        rule = f"{together}must be rising without repetition"
        raise FieldError(field, rule, got, fix, others)
    if got[0] < 0 or got[-1] >= n_layers:
        nearest = sorted({min(max(layer, 0), n_layers - 1) for layer in got})
        rule = f"{together}must stay within 0..n_layers - 1 ({n_layers - 1})"
        fix = f"the nearest are {nearest}"
        raise FieldError(field, rule, got, fix, (*others, "n_layers"))


def check_absent(config: object, name: str, *, given: str) -> None:
    """Refuse a field that means nothing beside another one, which is given.

    Raises:
        FieldError: If it is not None.
    """
    value = getattr(config, name)
    if value is not None:
        raise FieldError(name, f"must be null when {given} is given", value, others=(given,))


def check_layer(layer: int | None, *, n_layers: int, field: str) -> None:
    """Refuse a layer that is not there; None is the middle one and always is.

    Raises:
        FieldError: Naming `field`, which says the layer, and the nearest layer that works.
    """
    if layer is not None and not 0 <= layer < n_layers:
        rule = f"must stay within 0..n_layers - 1 ({n_layers - 1})"
        fix = f"the nearest is {min(max(layer, 0), n_layers - 1)}"
        raise FieldError(field, rule, layer, fix, ("n_layers",))
