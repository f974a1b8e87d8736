"""Commands `memscale ui` and `sync`: the MLflow page, and exports to it."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.app import Runs, SweepName, TrackingUri, app, find_sweep, reports_errors


@app.command(epilog="Example: memscale ui")
@reports_errors
def ui(
    sweep: Annotated[
        str | None, typer.Argument(help="Sweep to open. Default: the newest.", metavar="[SWEEP]")
    ] = None,
    runs: Runs = Path("runs"),
    tracking_uri: TrackingUri = None,
    port: Annotated[
        int, typer.Option(help="Port on the loopback interface; the next free one is taken.")
    ] = 5000,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Anything but loopback lets others in.")
    ] = "127.0.0.1",
) -> None:
    """Open the MLflow page with the runs in it. Ctrl-C ends it."""
    from orchestrator.cli import mlflow_server as page

    page.serve(runs, sweep=sweep, tracking_uri=tracking_uri, host=host, port=port, say=typer.echo)


@app.command(epilog="Example: memscale sync quickstart --tracking-uri http://127.0.0.1:5000")
@reports_errors
def sync(sweep: SweepName, runs: Runs = Path("runs"), tracking_uri: TrackingUri = None) -> None:
    """Send what the tracker does not have yet, from the trial directories alone."""
    from orchestrator.tracking.exporter_process import exporting

    with exporting(find_sweep(runs, sweep), tracking_uri) as exporter:
        pass
    if exporter.unsynced_points or exporter.problem:
        typer.echo(
            f"{exporter.unsynced_points:,} points are not in the tracker yet: {exporter.problem}. "
            "Run this again when it answers.",
            err=True,
        )
        raise typer.Exit(1)
    typer.echo(f"The tracker has every point of {sweep}.")
