"""Where the time of `memscale report` goes, in CPU seconds of each part and wall time of all.

    make quickstart
    python benchmarks/report_time.py runs quickstart

Parts run one after the other in one process here; CPU seconds of a process that helps are counted.
The command shares curves and figures with a second process, so it takes less wall time than the
parts together. Figures are drawn without starting from an earlier report's.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FORMATS: dict[str, float] = {}
"""Figure format, or function of `analysis/plotting/canvas.py`, to CPU seconds."""


def cpu_seconds() -> float:
    """Return CPU seconds of this process and of those that it has waited for."""
    return sum(os.times()[:4])


@contextmanager
def measured(part: str) -> Iterator[None]:
    """Print what a part takes."""
    began = cpu_seconds()
    yield
    print(f"{cpu_seconds() - began:7.2f} s  {part}", flush=True)


def count_formats() -> None:
    """Sum the time of every figure's layout and formats into FORMATS."""
    from analysis.plotting import canvas

    image = canvas.image

    def timed_image(figure, kind):
        began = cpu_seconds()
        found = image(figure, kind)
        FORMATS[kind] = FORMATS.get(kind, 0.0) + cpu_seconds() - began
        return found

    def timed(part):
        work = getattr(canvas, part)

        def call(figure):
            began = cpu_seconds()
            found = work(figure)
            FORMATS[part] = FORMATS.get(part, 0.0) + cpu_seconds() - began
            return found

        setattr(canvas, part, call)

    canvas.image = timed_image
    timed("settle_layout")
    timed("drawn_once")


def parts(runs: Path, sweep: str, out: Path) -> None:
    """Print the CPU seconds of each part of a report."""
    began = cpu_seconds()
    with measured("imports"):
        from orchestrator.cli import analyse

        analyse._run_lightly()  # as the command
        import analysis
        from analysis.report import figure_files
        from analysis.report.contents import report_contents
        from analysis.report.html import write_contents

        count_formats()
        # Formats are counted in one process.
        figure_files.in_second_process = lambda tasks: lambda: [task() for task in tasks]
    with measured("runs from the folder"):
        table = analysis.load(runs, sweep=sweep)
    with measured("curves and resamples"):
        fits = analysis.fit_sweep(table)
    with measured("figures of runs and curves"):
        pictures = figure_files.draw_beside(figure_files.sweep_figures(table, fits), out)()
    with measured("planned trials"):
        trials = analyse._recorded_trials(runs, sweep)
    with measured("laws, multipliers, frontier, next runs, and their figures before drawing"):
        contents = report_contents(table, fits, trials=trials)
    with measured("figures of these, tables, page"):
        write_contents(contents, out, of_sweep=lambda: pictures, earlier=[])
    print(f"{cpu_seconds() - began:7.2f} s  together")
    each = ", ".join(f"{kind} {seconds:.2f} s" for kind, seconds in FORMATS.items())
    print(f"Of the figures: {each}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="folder of sweeps")
    parser.add_argument("sweep")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        parts(arguments.runs, arguments.sweep, Path(folder))
        command = [str(Path(sys.executable).with_name("memscale")), "report", arguments.sweep]
        began, used = time.perf_counter(), cpu_seconds()
        subprocess.run(
            [*command, "--runs", str(arguments.runs), "--out", folder],
            check=True,
            capture_output=True,
        )
        wall, used = time.perf_counter() - began, cpu_seconds() - used
    busy = os.getloadavg()[0]
    print(
        f"The command: {wall:.1f} s on {os.cpu_count()} cores (load {busy:.1f}), {used:.1f} CPU s"
    )


if __name__ == "__main__":
    main()
