"""trackio: one SQLite file per sweep, which `trackio show` reads."""

import os
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.tracking.other_trackers.run_copy import RunCopy, RunWriter


class TrackioFolder:
    """Writes runs into FOLDER; the project is the sweep, the run's id the trial's."""

    def __init__(self, folder: Path) -> None:
        """Import trackio, which fixes its folder while it is imported."""
        os.environ["TRACKIO_DIR"] = str(folder)
        # `trackio.init` would start a server; its storage writes the same rows without one.
        from trackio.sqlite_storage import SQLiteStorage

        self._storage = SQLiteStorage

    def write(self, run: RunCopy) -> None:
        """Write a run in place of what the folder has of it."""
        rows = [(row.step, row.t, dict(row.metrics)) for row in run.rows]
        if run.summary:
            step, t, _ = rows[-1] if rows else (0, 0, {})
            rows.append((step, t, {f"final/{name}": v for name, v in run.summary.items()}))
        if not rows:
            return
        self._storage.delete_run(run.sweep, run.name, run_id=run.trial_id)
        self._storage.bulk_log(
            project=run.sweep,
            run=run.name,
            run_id=run.trial_id,
            metrics_list=[metrics for _, _, metrics in rows],
            steps=[step for step, _, _ in rows],
            timestamps=[datetime.fromtimestamp(t / 1000, UTC).isoformat() for _, t, _ in rows],
            config={**run.config, "state": run.state, "_Group": run.architecture},
        )


def open_writer(folder: Path) -> RunWriter:
    """Return a writer into a folder of trackio."""
    return TrackioFolder(folder)
