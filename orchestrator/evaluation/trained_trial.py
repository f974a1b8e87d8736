"""Models that trials have trained, read from their folders."""

from pathlib import Path
from typing import Any

from orchestrator.records.errors import UsageError, not_installed
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import TrialSpec, TrialState
from orchestrator.sweep import registry


def load(trial: TrialDir) -> Any:
    """Return what a trial has learned (`workloads.training.trained_model.TrainedModel`).

    Raises:
        UsageError: If it has not finished, its checkpoint is damaged, or its data have changed.
        StoreError: If its spec cannot be read.
    """
    spec, state = trial.spec(), trial.state()
    if state is not TrialState.DONE:
        raise UsageError(
            f"trial {trial.trial_id}: is {state.value}, so it has no final weights; "
            "submit its sweep and wait until it is done"
        )
    return _load(trial, spec, "final")


def trial_of_checkpoint(folder: Path) -> TrialDir | None:
    """Return the trial that a checkpoint's folder belongs to; None for any other folder."""
    place = folder.absolute()
    here = place.parent.name == "checkpoints" and (place.parents[1] / "spec.json").is_file()
    return TrialDir(place.parents[1]) if here else None


def load_checkpoint(trial: TrialDir, name: str) -> Any:
    """Return what a trial had learned by a checkpoint, whether it has finished or not.

    Raises:
        UsageError: If the checkpoint is damaged, or the trial's data have changed.
        StoreError: If the trial's spec cannot be read.
    """
    return _load(trial, trial.spec(), name)


def _load(trial: TrialDir, spec: TrialSpec, checkpoint: str) -> Any:
    runs = trial.path.absolute().parents[2]
    try:
        return registry.trained_model().load_trial(
            trial.checkpoints,
            data=spec.data,
            data_sha256=spec.data_sha256,
            model=spec.model,
            train=spec.train,
            cache=runs / "cache",
            name=checkpoint,
        )
    except ValueError as error:
        raise UsageError(f"trial {trial.trial_id}: {error}") from error
    except ModuleNotFoundError as error:
        raise not_installed(error, "torch") from error


def export(trial: TrialDir, folder: Path) -> Any:
    """Write a trial's model in Hugging Face's format and return it.

    Raises:
        UsageError: If there is none yet, transformers has no model that computes the same, or the
            folder holds the model of another trial.
    """
    trained = load(trial)
    try:
        registry.trained_model().export(trained, folder, trial_id=trial.trial_id)
    except ValueError as error:
        raise UsageError(f"trial {trial.trial_id}: {error}") from error
    except ModuleNotFoundError as error:
        raise not_installed(error, "torch") from error
    return trained
