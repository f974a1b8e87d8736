"""Command `memscale doctor`: problems of this machine, with their fixes."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.app import Runs, console_here, verb


@verb(
    epilog="Example: memscale doctor",
    help="Check Python, torch, GPUs, Ray, MLflow, disk and ports, and say what to do about each "
    "problem.",
)
def doctor(
    runs: Runs = Path("runs"),
    port: Annotated[int, typer.Option(help="Port that `memscale ui` would use.")] = 5000,
) -> None:
    """Check this machine."""
    from orchestrator.cli.render import results
    from orchestrator.diagnostics import Severity, run_checks

    console = console_here()
    checks = []
    for check in run_checks(runs, port=port):
        checks.append(check)
        console.print(results.doctor_table([check]))
    failed = sum(check.severity is Severity.FAIL for check in checks)
    console.print(f"{failed} of {len(checks)} checks failed." if failed else "Ready.")
    raise typer.Exit(1 if failed else 0)
