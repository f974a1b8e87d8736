"""Records in, numbers and figures out: `load`, `fit_sweep`, `histories`, `write_report`.

    import analysis
    runs = analysis.load("sqlite:///runs/mlflow.db", sweep="quickstart")
    fits = analysis.fit_sweep(runs)
    analysis.write_report(runs, fits, "report")
    analysis.histories(runs, ("memory/", "moe/"))  # those metrics at every step they were reported

The names are looked up on first use (PEP 562), so that `import analysis` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.fit import fit_sweep as fit_sweep
    from analysis.report import write_report as write_report
    from analysis.runs import histories as histories
    from analysis.runs import load as load

_HOME = {
    "load": "analysis.runs",
    "histories": "analysis.runs",
    "fit_sweep": "analysis.fit",
    "write_report": "analysis.report",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(
            f"module 'analysis' has no attribute {name!r}; it has {', '.join(sorted(_HOME))}"
        )
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
