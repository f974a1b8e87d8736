"""Analysis of training runs: load tables, fit scaling laws, draw and report.

    import analysis
    runs = analysis.load("sqlite:///runs/mlflow.db", sweep="quickstart")
    fits = analysis.fit_sweep(runs)
    analysis.write_report(runs, fits, "report")
    analysis.histories(runs, ("memory/", "moe/"))  # those metrics at every reported step

    runs = analysis.load("published.csv", columns={"params": "N", "loss": "c4"})  # anybody's runs
    fit = analysis.fit_law("chinchilla", runs)
    analysis.save(analysis.draw(fit), "chinchilla")

    laws = analysis.fit_families(runs)  # one law per architecture
    analysis.draw(analysis.multipliers(laws, "memory_plus"))
    analysis.draw(analysis.frontier(laws))

Names are looked up on first use (PEP 562), so that `import analysis` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis import laws as laws
    from analysis.fitting import objective as objectives  # noqa: F401 - public by this name
    from analysis.fitting.fit_file import load_fit as load_fit
    from analysis.fitting.fit_law import fit_law as fit_law
    from analysis.fitting.missing_run_sensitivity import fit_partial as fit_partial
    from analysis.fitting.model_selection import choose_law as choose_law
    from analysis.fitting.model_selection import compare_laws as compare_laws
    from analysis.fitting.two_stage import fit_chain as fit_chain
    from analysis.laws.registry import all_laws as all_laws
    from analysis.laws.registry import law_named as law_named
    from analysis.laws.shared_coefficients import SharedCoefficients as SharedCoefficients
    from analysis.loading.load import histories as histories
    from analysis.loading.load import load as load
    from analysis.plotting.canvas import save as save
    from analysis.plotting.draw import draw as draw
    from analysis.report.contents import report_contents as report_contents
    from analysis.report.html import write_report as write_report
    from analysis.report.tables import tables as tables
    from analysis.scaling.architecture_laws import fit_families as fit_families
    from analysis.scaling.compute_multiplier import multipliers as multipliers
    from analysis.scaling.envelope import fit_envelope as fit_envelope
    from analysis.scaling.experimental_design import next_runs as next_runs
    from analysis.scaling.frontier import frontier as frontier
    from analysis.scaling.isoflop import fit_isoflop as fit_isoflop
    from analysis.scaling.sweep_summary import fit_sweep as fit_sweep

_MODULE_OF = {
    "SharedCoefficients": "laws.shared_coefficients",
    "all_laws": "laws.registry",
    "choose_law": "fitting.model_selection",
    "compare_laws": "fitting.model_selection",
    "draw": "plotting.draw",
    "fit_chain": "fitting.two_stage",
    "fit_envelope": "scaling.envelope",
    "fit_families": "scaling.architecture_laws",
    "fit_isoflop": "scaling.isoflop",
    "fit_law": "fitting.fit_law",
    "fit_partial": "fitting.missing_run_sensitivity",
    "fit_sweep": "scaling.sweep_summary",
    "frontier": "scaling.frontier",
    "histories": "loading.load",
    "law_named": "laws.registry",
    "load": "loading.load",
    "load_fit": "fitting.fit_file",
    "multipliers": "scaling.compute_multiplier",
    "next_runs": "scaling.experimental_design",
    "report_contents": "report.contents",
    "save": "plotting.canvas",
    "tables": "report.tables",
    "write_report": "report.html",
}
_MODULES = {"laws": "laws", "objectives": "fitting.objective"}
"""Names of whole modules."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"analysis.{_MODULES[name]}")
    if name not in _MODULE_OF:
        public = ", ".join(sorted({*_MODULE_OF, *_MODULES}))
        raise AttributeError(f"module 'analysis' has no attribute {name!r}; it has {public}")
    return getattr(importlib.import_module(f"analysis.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF, *_MODULES})
