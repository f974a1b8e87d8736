"""Trials of earlier submissions that a sweep's last one does not ask for.

They are left alone. Those that are done are results of the sweep like any others: `memscale next`
submits a file of its own under the same name.
"""

from collections.abc import Collection, Sequence

from orchestrator.records import unstarted_specs
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_dir import TRIAL_ID, TrialDir
from orchestrator.records.units import plural

NOT_ASKED_FOR = "not in the sweep file as last submitted"


def earlier_trials(sweep: SweepDir, asked: Collection[str]) -> list[TrialDir]:
    """Return the trials that have a spec and are not asked for, by name.

    Args:
        sweep: Its folder.
        asked: Trials that the last submission asks for.
    """
    unstarted = unstarted_specs.read(sweep.path).keys()
    # Those asked for are not looked at: there may be thousands, on a network.
    others = sorted((sweep.trial_folders() | unstarted).difference(asked))
    trials = [sweep.trial(name) for name in others if TRIAL_ID.fullmatch(name)]
    return [trial for trial in trials if trial.trial_id in unstarted or trial.has_spec()]


def told(trials: Sequence[TrialDir]) -> str:
    """Return a sentence on such trials, empty without any."""
    if not trials:
        return ""
    n_done = sum((trial.path / "result.json").exists() for trial in trials)
    are = "is" if len(trials) == 1 else "are"
    became = fates(n_done, len(trials) - n_done)
    return f"{plural(len(trials), 'trial')} {are} {NOT_ASKED_FOR}: {became}"


def fates(n_done: int, n_left: int) -> str:
    """Return what becomes of such trials, in words: of those that are done and of the others."""
    done = [f"{n_done} done, which fits and reports count"] if n_done else []
    left = [f"{n_left} not done, which train once a file asks for them again"] if n_left else []
    return ", and ".join([*done, *left])
