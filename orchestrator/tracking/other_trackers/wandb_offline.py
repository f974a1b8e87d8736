"""Weights & Biases: one offline run per trial, which `wandb sync` uploads."""

import os
import shutil
from pathlib import Path

from orchestrator.records.json_files import read_json, write_json
from orchestrator.tracking.other_trackers.run_copy import RunCopy, RunWriter

WRITTEN = "memscale.json"
"""In a run's folder: digest of what it holds, once it is whole."""
SETTINGS = {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
"""Nothing leaves the machine before the user uploads it."""


class WandbOffline:
    """Writes offline runs below FOLDER/wandb, each with its trial's id."""

    def __init__(self, folder: Path) -> None:
        """Import wandb, which starts no process yet."""
        os.environ.update(SETTINGS)
        import wandb

        self._wandb = wandb
        self._folder = folder

    def write(self, run: RunCopy) -> None:
        """Write a run anew if it changed since the last time."""
        for earlier in (self._folder / "wandb").glob(f"offline-run-*-{run.trial_id}"):
            if (read_json(earlier / WRITTEN) or {}).get("digest") == run.digest:
                return
            shutil.rmtree(earlier)
        opened = self._wandb.init(
            project=run.sweep,
            id=run.trial_id,
            name=run.name,
            group=run.architecture,
            config=dict(run.config),
            tags=[run.state],
            dir=self._folder,
            mode="offline",
            # What wandb finds out by itself is about this process, not about the training.
            settings=self._wandb.Settings(
                silent=True,
                console="off",
                save_code=False,
                disable_git=True,
                x_disable_stats=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
            ),
        )
        for row in run.rows:
            opened.log({**row.metrics, "_timestamp": row.t / 1000}, step=row.step)
        opened.summary.update({**run.summary, "state": run.state})
        place = Path(opened.dir).parent
        opened.finish()
        write_json(place / WRITTEN, {"digest": run.digest}, durable=False)


def open_writer(folder: Path) -> RunWriter:
    """Return a writer of offline runs into a folder."""
    return WandbOffline(folder)
