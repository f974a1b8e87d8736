"""Scaling laws, one file each: an equation, its source, and its exact derivatives."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.laws.chinchilla import CHINCHILLA as CHINCHILLA
    from analysis.laws.chinchilla import compute_optimum as compute_optimum
    from analysis.laws.loss_to_accuracy import Sigmoid as Sigmoid
    from analysis.laws.registry import all_laws as all_laws
    from analysis.laws.registry import law_named as law_named

_MODULE_OF = {
    "CHINCHILLA": "chinchilla",
    "Sigmoid": "loss_to_accuracy",
    "all_laws": "registry",
    "compute_optimum": "chinchilla",
    "law_named": "registry",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'analysis.laws' has no attribute {name!r}")
    return getattr(importlib.import_module(f"analysis.laws.{_MODULE_OF[name]}"), name)
