"""Lazily imported modules: rarely used, loaded on first use."""

import importlib.util
import sys
from contextlib import suppress


def load_on_first_use(*names: str) -> None:
    """Let `from PACKAGE import MODULE` cost nothing until something of the module is asked for.

    The recipe of the standard library (importlib, "Implementing lazy imports"). Packages themselves
    are imported. Names that are not installed are passed over: whoever needs them says so.

    Args:
        names: Modules inside packages, with dots.
    """
    for name in names:
        with suppress(ModuleNotFoundError):
            spec = None if name in sys.modules else importlib.util.find_spec(name)
            if spec is None or spec.loader is None:
                continue
            spec.loader = importlib.util.LazyLoader(spec.loader)
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
            package, _, own = name.rpartition(".")
            setattr(sys.modules[package], own, module)
