"""Commands `memscale ui` and `sync`: the MLflow page, and exports to it."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.app import Runs, SweepName, TrackingUri, find_sweep, verb


@verb(epilog="Example: memscale ui")
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

    _send_report(sweep or page.newest_sweep(runs), runs, tracking_uri)
    page.serve(runs, sweep=sweep, tracking_uri=tracking_uri, host=host, port=port, say=typer.echo)


def _send_report(sweep: str | None, runs: Path, tracking_uri: str | None) -> None:
    """Send the sweep's report to its tracker, where people look, if it is newer than what is there.

    A tracker that was not sent anything of the sweep gets nothing.
    """
    from orchestrator.records.sweep_dir import sweep_dir
    from orchestrator.tracking import sync_state
    from orchestrator.tracking.exporter_process import exporting
    from orchestrator.tracking.sweep_report import read_report
    from orchestrator.tracking.tracking_uri import default_tracking_uri

    if sweep is None:
        return
    folder, uri = sweep_dir(runs, sweep), tracking_uri or default_tracking_uri(runs)
    report = read_report(folder.path)
    sent = sync_state.load_parent(folder, uri)
    if report is None or sent is None or report.digest == sent.report:
        return
    typer.echo(f"Sending the report of {sweep}…")
    with exporting(folder, tracking_uri):
        pass


@verb(epilog="Example: memscale sync quickstart --tracking-uri http://127.0.0.1:5000")
def sync(sweep: SweepName, runs: Runs = Path("runs"), tracking_uri: TrackingUri = None) -> None:
    """Send what the tracker does not have yet, from the trial directories alone."""
    from orchestrator.tracking import sync_state
    from orchestrator.tracking.exporter_process import exporting

    folder = find_sweep(runs, sweep)
    known = sync_state.trackers(folder)
    with exporting(folder, tracking_uri) as exporter:
        pass
    drained = exporter.drained
    assert drained is not None, "the end of `exporting` drains"
    if not drained.complete:
        exporter.forget_unused(but=known)
        typer.echo(
            f"{drained.missing} not in the tracker yet: {drained.problem}. "
            "Run this again when that is mended.",
            err=True,
        )
        raise typer.Exit(1)
    typer.echo(f"The tracker has every point of {sweep}.")
