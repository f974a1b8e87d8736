"""Command `memscale doctor`: problems of this machine, with their fixes."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.app import Json, Runs, console_here, echo_json, verb


@verb(
    epilog="Example: memscale doctor",
    help="Check Python, torch, GPUs, Ray, MLflow, disk and ports, and say what to do about each "
    "problem.",
)
def doctor(
    runs: Runs = Path("runs"),
    port: Annotated[int, typer.Option(help="Port that `memscale ui` would use.")] = 5000,
    json: Json = False,
) -> None:
    """Check this machine."""
    from orchestrator.cli.render import results
    from orchestrator.diagnostics import Severity, run_checks

    console = console_here()
    checks = []
    for check in run_checks(runs, port=port):
        checks.append(check)
        if not json:
            console.print(results.doctor_table([check]))
    failed = sum(check.severity is Severity.FAIL for check in checks)
    if json:
        echo_json([dataclasses.asdict(check) for check in checks])
        raise typer.Exit(1 if failed else 0)
    console.print(f"{failed} of {len(checks)} checks failed." if failed else "Ready.")
    raise typer.Exit(1 if failed else 0)
