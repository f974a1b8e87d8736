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
    from analysis.chain import fit_chain as fit_chain
    from analysis.choose import compare_laws as compare_laws
    from analysis.envelope import fit_envelope as fit_envelope
    from analysis.figures import save as save
    from analysis.fit import fit_sweep as fit_sweep
    from analysis.isoflop import fit_isoflop as fit_isoflop
    from analysis.law_book import all_laws as all_laws
    from analysis.law_book import law_named as law_named
    from analysis.law_figure import draw as draw
    from analysis.law_fit import fit_law as fit_law
    from analysis.partial import fit_partial as fit_partial
    from analysis.report import write_report as write_report
    from analysis.runs import histories as histories
    from analysis.runs import load as load

_HOME = {
    "all_laws": "analysis.law_book",
    "compare_laws": "analysis.choose",
    "draw": "analysis.law_figure",
    "fit_chain": "analysis.chain",
    "fit_envelope": "analysis.envelope",
    "fit_isoflop": "analysis.isoflop",
    "fit_law": "analysis.law_fit",
    "fit_partial": "analysis.partial",
    "fit_sweep": "analysis.fit",
    "histories": "analysis.runs",
    "law_named": "analysis.law_book",
    "load": "analysis.runs",
    "save": "analysis.figures",
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
