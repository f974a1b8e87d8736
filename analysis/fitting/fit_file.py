"""Fits as JSON files: the numbers of a `LawFit`, its runs and their hash."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from analysis.fitting.interval_calibration import Levels
from analysis.fitting.law import Law, as_law
from analysis.fitting.objective import Objective
from analysis.fitting.result import FitStatus, HoldOut, LawFit, LawPrediction

FORMAT = "memscale.fit/1"
_CLASSES = {c.__name__: c for c in (LawFit, HoldOut, LawPrediction, Levels, Objective)}


def save_fit(fit: LawFit, path: Path) -> None:
    """Write a fit as JSON.

    Raises:
        ValueError: If the law is not one of `analysis/laws` as it is.
    """
    content = {"format": FORMAT, "data_sha256": data_hash(fit), "fit": _plain(fit)}
    path.write_text(json.dumps(content, allow_nan=False) + "\n", encoding="utf-8")


def load_fit(path: str | Path) -> LawFit:
    """Read a fit that `fit.save` wrote.

    Raises:
        ValueError: If the file is no such fit, or its runs are not those that were fitted.

    Example:
        >>> import tempfile
        >>> from analysis import fit_law
        >>> runs = {"x": [1e6, 4e6, 1.6e7, 6.4e7, 2.56e8], "loss": [5.0, 4.0, 3.5, 3.25, 3.125]}
        >>> fit = fit_law("power", runs, n_draws=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fit.save(f"{folder}/fit.json")
        ...     again = load_fit(f"{folder}/fit.json")
        >>> again.parameters == fit.parameters
        True
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        found = content["format"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path}: not a saved fit; write one with fit.save(path)") from None
    if found != FORMAT:
        raise ValueError(f"{path}: format must be {FORMAT}, got {found}; fit and save again")
    fit: LawFit = _restored(content["fit"])
    if data_hash(fit) != content["data_sha256"]:
        raise ValueError(f"{path}: the runs were changed after the fit; fit and save again")
    return fit


def data_hash(fit: LawFit) -> str:
    """Return the SHA-256 of the runs: inputs, outcomes and configurations, in the order given."""
    digest = hashlib.sha256()
    for name in sorted(fit.inputs):
        digest.update(name.encode() + np.ascontiguousarray(fit.inputs[name], dtype="<f8").tobytes())
    digest.update(fit.outcome.encode() + np.ascontiguousarray(fit.y, dtype="<f8").tobytes())
    digest.update(json.dumps([str(label) for label in fit.clusters]).encode())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; what JSON lacks is an object with one key."""
    if isinstance(value, Law):
        _check_registered(value)
        return {"$law": value.name, "bounds": _plain(value.bounds)}
    if dataclasses.is_dataclass(value):
        fields = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"$class": type(value).__name__, **fields}
    if isinstance(value, np.ndarray):
        return {"$array": _plain(value.tolist()), "dtype": str(value.dtype), "shape": value.shape}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    return value


def _restored(value: Any) -> Any:
    """Return what `_plain` wrote; lists come back as tuples."""
    if isinstance(value, list):
        return tuple(_restored(v) for v in value)
    if not isinstance(value, dict):
        return value
    if "$law" in value:
        law, bounds = as_law(value["$law"]), _restored(value.get("bounds"))
        return law.within(bounds) if bounds else law
    if "$float" in value:
        return float(value["$float"])
    if "$array" in value:
        array = np.asarray(_restored(value["$array"]), dtype=value["dtype"])
        return array.reshape(value["shape"])
    fields = {k: _restored(v) for k, v in value.items() if k != "$class"}
    if "$class" not in value:
        return fields
    if value["$class"] == "LawFit":
        fields["status"] = FitStatus(fields["status"])
    return _CLASSES[value["$class"]](**fields)


def _check_registered(law: Law) -> None:
    try:
        registered = as_law(law.name)
        same = type(registered) is type(law) and vars(registered) == {
            name: value for name, value in vars(law).items() if name != "bounds"
        }
    except ValueError:
        same = False
    if not same:
        raise ValueError(
            f"law: {law.name} with its settings is not a law of analysis/laws, so a file cannot "
            "name it; pickle the fit instead"
        )
