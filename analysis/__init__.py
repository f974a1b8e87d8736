"""Records in, numbers and figures out.

    import analysis
    runs = analysis.load("sqlite:///runs/mlflow.db", sweep="quickstart")
    fits = analysis.fit_sweep(runs)
    analysis.write_report(runs, fits, "report")
    analysis.histories(runs, ("memory/", "moe/"))  # those metrics at every step they were reported

    runs = analysis.load("published.csv", columns={"params": "N", "loss": "c4"})  # anybody's runs
    fit = analysis.fit_law(analysis.law_named("chinchilla"), runs.table)
    analysis.save(analysis.draw(fit), Path("chinchilla"))

The names are looked up on first use (PEP 562), so that `import analysis` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.fitting.fit_law import fit_law as fit_law
    from analysis.fitting.missing_run_sensitivity import fit_partial as fit_partial
    from analysis.fitting.model_selection import compare_laws as compare_laws
    from analysis.fitting.two_stage import fit_chain as fit_chain
    from analysis.laws.registry import all_laws as all_laws
    from analysis.laws.registry import law_named as law_named
    from analysis.loading.load import histories as histories
    from analysis.loading.load import load as load
    from analysis.plotting.fits import draw as draw
    from analysis.plotting.sweep import save as save
    from analysis.report.html import write_report as write_report
    from analysis.scaling.envelope import fit_envelope as fit_envelope
    from analysis.scaling.isoflop import fit_isoflop as fit_isoflop
    from analysis.scaling.sweep_summary import fit_sweep as fit_sweep

_HOME = {
    "all_laws": "analysis.laws.registry",
    "compare_laws": "analysis.fitting.model_selection",
    "draw": "analysis.plotting.fits",
    "fit_chain": "analysis.fitting.two_stage",
    "fit_envelope": "analysis.scaling.envelope",
    "fit_isoflop": "analysis.scaling.isoflop",
    "fit_law": "analysis.fitting.fit_law",
    "fit_partial": "analysis.fitting.missing_run_sensitivity",
    "fit_sweep": "analysis.scaling.sweep_summary",
    "histories": "analysis.loading.load",
    "law_named": "analysis.laws.registry",
    "load": "analysis.loading.load",
    "save": "analysis.plotting.sweep",
    "write_report": "analysis.report.html",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(
            f"module 'analysis' has no attribute {name!r}; it has {', '.join(sorted(_HOME))}"
        )
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
