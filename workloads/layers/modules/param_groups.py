"""Parameter groups: the group of `ParamCount` of each parameter.

The nearest enclosing module decides, by its `PARAM_GROUP`.
"""

from torch import nn

from workloads.accounting.counts import ParamCount

GROUPS = frozenset(ParamCount().as_dict())


def param_groups(model: nn.Module) -> dict[str, str]:
    """Return parameter name -> group, the `PARAM_GROUP` of the nearest enclosing module.

    Raises:
        TypeError: If no module around a parameter says, or one says a group that does not exist.
    """
    groups: dict[str, str] = {}
    found: dict[str, str | None] = {"": getattr(model, "PARAM_GROUP", None)}
    for path, module in model.named_modules():
        if path:
            parent = found[path.rpartition(".")[0]]
            found[path] = getattr(module, "PARAM_GROUP", parent)
        for name, _ in module.named_parameters(recurse=False):
            full = f"{path}.{name}" if path else name
            group = found[path]
            if group not in GROUPS:
                raise TypeError(
                    f"{full}: no module around it has a PARAM_GROUP among "
                    f"{', '.join(sorted(GROUPS))}, got {group!r}; "
                    "give its class one"
                )
            groups[full] = group
    return groups
