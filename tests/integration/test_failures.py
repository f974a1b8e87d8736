"""Every way to fail, caused for real in ranks that train: the reason that is stored, what follows, what it costs.

One sweep holds them all, so that one fork server serves them. The signs are in `failing_job.py`.
"""

import contextlib
import itertools
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.control.loop import Controller
from orchestrator.launchers.local import ProcessLauncher
from orchestrator.records import logs
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Logging, Retries, TrialState

# The sweep that all share takes most of a minute, and minutes where the machine has other work.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

STEPS = 24
JOB = f"{Path(__file__).with_name('failing_job.py')}:run"
FAULTS = str(Path(__file__).parents[1] / "chaos" / "faults")
"""Folder of the sitecustomize.py that lets storage fail."""
GROWTH_BYTES = 128 * 2**20
"""What the cgroup of the kernel's victim may take."""


class Sweep:
    """A sweep of trials that fail, its controller in this process."""

    def __init__(self, path, make_spec):
        self.disk = SweepDir(path)
        self.make_spec = make_spec
        self.trials = {}

    def add(self, causes, *, ranks=1, train=None, logging=None, **resources):
        spec = self.make_spec("dense", len(self.trials), ranks=ranks)
        spec = replace(
            spec,
            sweep=self.disk.name,
            origin=causes,
            train={**spec.train, "tokens": STEPS * spec.train["batch_tokens"], **(train or {})},
            resources=replace(spec.resources, **resources),
            retries=Retries(failure=4),
            logging=logging or spec.logging,
        )
        self.trials[causes] = self.disk.trial(spec.trial_id)
        self.trials[causes].create(spec)

    def run(self, on_update=lambda status: None):
        self.status = Controller(
            self.disk,
            submission=1,
            trial_ids=[trial.trial_id for trial in self.trials.values()],
            launcher=ProcessLauncher(self.disk, cpus=2),
            cache=self.disk.path.parent / "cache",
            job=JOB,
        ).run(on_update)

    def ends(self, causes):
        return [attempt.end() for attempt in self.trials[causes].attempts()]

    def first(self, causes):
        """Return how the first attempt ended, and its log."""
        end = self.ends(causes)[0]
        return end["outcome"], end["reason"], self.trials[causes].attempt(1).log.read_text()


@contextlib.contextmanager
def small_cgroup():
    """Yield a cgroup with little memory; None where none can be made."""
    for root, limit in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        group = Path(root) / f"memscale-test-{os.getpid()}"
        try:
            group.mkdir()
            try:
                (group / limit).write_text(str(GROWTH_BYTES))
            except OSError:
                group.rmdir()
                raise
        except OSError:
            continue
        yield group
        group.rmdir()
        return
    yield None


@pytest.fixture(scope="module")
def failed(tmp_path_factory, make_spec):
    """The sweep, brought to its end."""
    sweep = Sweep(tmp_path_factory.mktemp("runs") / "failing", make_spec)
    sweep.add("user_error", micro_batch_tokens=1)
    sweep.add("diverged", train={"lr": 1.0e30})
    sweep.add("gpu_oom")
    sweep.add("host_oom")
    sweep.add("lost_connection killed preempted", ranks=2)
    sweep.add("slow", time_limit_s=12.0)
    sweep.add("hang", ranks=2, hang_after_s=12.0)
    sweep.add("storage")
    flag = sweep.disk.path.parent / "storage-fails"
    failing = sweep.trials["storage"]

    def mend(status):
        if flag.exists() and failing.attempt(1).end() is not None:
            flag.unlink()

    with small_cgroup() as group, pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHAOS_STORAGE", f"{flag}:{failing.path}")
        patch.setenv(
            "PYTHONPATH", os.pathsep.join(filter(None, (FAULTS, os.environ.get("PYTHONPATH"))))
        )
        if group is not None:
            patch.setenv("TEST_CGROUP", str(group))
            sweep.add("kernel_oom")
        sweep.run(mend)
    return sweep


def test_what_would_end_the_same_way_again_is_final_and_all_else_goes_on_to_the_end(failed):
    states = {causes: trial.state() for causes, trial in failed.trials.items()}

    assert states.pop("user_error") is states.pop("diverged") is TrialState.FAILED
    assert set(states.values()) == {TrialState.DONE}


def test_user_error_names_the_value_and_the_fix(failed):
    outcome, reason, log = failed.first("user_error")

    assert outcome == "user_error"
    assert "micro_batch_tokens must be at least one sequence (32), got 1" in reason
    assert reason.endswith("(user_error would end the same way again)")
    assert "Traceback" in log


def test_divergence_names_step_and_learning_rate(failed):
    outcome, reason, _ = failed.first("diverged")

    assert outcome == "diverged"
    assert "at learning rate" in reason
    assert "lower train.lr" in reason
    assert len(failed.ends("diverged")) == 1


def test_gpu_out_of_memory_goes_on_with_half_the_micro_batch(failed):
    outcome, reason, _ = failed.first("gpu_oom")
    first, second = failed.trials["gpu_oom"].attempts()[:2]

    assert (outcome, "CUDA out of memory" in reason) == ("gpu_oom", True)
    assert first.launch()["micro_batch_tokens"] is None
    assert second.launch()["memory_halvings"] == 1
    assert second.launch()["why"].startswith("retry after gpu_oom: ")


def test_host_memory_that_malloc_refuses(failed):
    outcome, reason, _ = failed.first("host_oom")

    assert (outcome, "can't allocate memory" in reason) == ("host_oom", True)


def test_host_memory_for_which_the_kernel_kills(failed):
    if "kernel_oom" not in failed.trials:
        pytest.skip("needs a memory cgroup of its own: root, and /sys/fs/cgroup writable")
    outcome, reason, _ = failed.first("kernel_oom")

    assert outcome == "host_oom"
    assert reason.startswith("the kernel ran out of memory and killed rank 0; ")


def test_lost_connection_lost_rank_and_preemption_have_their_own_reasons(failed):
    lost, killed, preempted = failed.ends("lost_connection killed preempted")[:3]

    assert lost["outcome"] == "communication"
    assert "between ranks failed" in lost["reason"]
    assert "retry 1 of 4 after communication" in lost["reason"]
    assert killed["outcome"] == "killed"
    assert killed["reason"].startswith("rank 1 died of SIGKILL")
    assert "retry 1 of 100 after killed" in killed["reason"]
    assert preempted["outcome"] == "preempted"
    assert "no step is lost" in preempted["reason"]


def test_time_limit_checkpoints_first(failed):
    outcome, reason, _ = failed.first("slow")

    assert outcome == "time_limit"
    assert reason.startswith("reached its time limit; no step is lost (retry 1 of 4")


@pytest.mark.faults
def test_storage_that_fails_is_named_and_costs_an_attempt(failed):
    outcome, reason, log = failed.first("storage")
    trial = failed.trials["storage"]

    assert outcome == "storage"
    assert reason.startswith(f"the storage of {trial.path} fails")
    assert "once it answers again, training goes on" in reason
    assert "retry 1 of 100 after storage" in reason
    assert f"Input/output error: '{trial.path}" in log
    assert trial.attempt(1).error() is None, "what failed took no record either"
    assert sorted(trial.metrics()["train/loss"]) == list(range(1, STEPS + 1))


def test_hang_tells_where_every_rank_stood_and_leaves_all_stacks_in_the_log(failed):
    outcome, reason, log = failed.first("hang")

    assert outcome == "hang"
    assert reason.startswith("no progress for ")
    assert "(limit 12 s: resources.hang_after_s)" in reason
    # Where a checkpoint is due, ranks meet to agree on it before they meet in the next step.
    meets = r"(all_reduce \(|wait \(gradient_allreduce\.py)"
    assert re.search(rf"rank 0 stood after step 10 of 24 \((train|checkpoint)\): {meets}", reason)
    assert "rank 1 stood after step 10 of 24 (train): wait (threading.py:" in reason
    assert "(hang)" in reason
    assert "retry 1 of 4 after hang" in reason
    assert "rank 0 (pid" in log
    assert "rank 1 (pid" in log
    assert log.count("(most recent call first)") >= 2
    assert "workloads/training/train.py" in log


@pytest.mark.faults
@pytest.mark.long
def test_a_rank_that_stands_still_is_ended_as_a_hang_and_the_trial_goes_on(tmp_path, make_spec):
    sweep = Sweep(tmp_path / "stopped", make_spec)
    sweep.add("stopped", hang_after_s=12.0)

    sweep.run()

    outcome, reason, _ = sweep.first("stopped")
    assert (outcome, "it was stopped by a signal" in reason) == ("hang", True), reason
    trial = sweep.trials["stopped"]
    assert [end["outcome"] for end in sweep.ends("stopped")] == ["hang", "done"]
    assert sorted(trial.metrics()["train/loss"]) == list(range(1, STEPS + 1))


def test_an_attempt_costs_at_most_the_steps_since_the_last_checkpoint(failed):
    checked = set()
    for trial in failed.trials.values():
        saved = 0
        for attempt, following in itertools.pairwise(trial.attempts()):
            for line in attempt.lines():
                if line.event and line.event["event"] == "checkpoint":
                    saved = line.event["step"]
            steps = [line.step for line in following.lines() if line.step is not None]
            if not steps:  # a busy machine had it end before its first
                continue
            assert steps[0] == saved + 1, (trial.trial_id, attempt.number)
            checked.add(trial.trial_id)
    assert len(checked) > 2


@pytest.mark.parametrize(
    ("causes", "attempt"), [("lost_connection killed preempted", 3), ("slow", 1)]
)
def test_who_is_told_beforehand_loses_no_step(failed, causes, attempt):
    trial = failed.trials[causes]
    steps = [line.step for line in trial.attempt(attempt).lines() if line.step is not None]
    again = [line.step for line in trial.attempt(attempt + 1).lines() if line.step is not None]

    assert again[0] == steps[-1] + 1


def test_a_removed_folder_ends_no_other_trial(tmp_path, make_spec):
    sweep = Sweep(tmp_path / "removed", make_spec)
    sweep.add("removed")
    sweep.add("gpu_oom")  # as good as any: it goes on to its end

    sweep.run()

    folder = sweep.trials["removed"].path
    (why,) = sweep.status.unreadable
    assert why.startswith(f"{folder}: somebody removed this folder while the trial ran; submit")
    assert sweep.trials["gpu_oom"].state() is TrialState.DONE


# -- full disk -----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 6 MiB, mounted."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "memscale-test", str(path)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a small disk of its own: root that may mount a tmpfs")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.faults
@pytest.mark.long
def test_a_full_disk_that_grows_is_used_by_itself(small_disk, make_spec):
    sweep = Sweep(small_disk / "grown", make_spec)
    sweep.add("disk_full", logging=Logging(every_steps=1, checkpoint_every_s=0.0))
    waits = []

    def enlarge(status):
        told = [trial.wait for trial in status.trials if "is full" in trial.wait]
        if told and not waits:
            resize = ["mount", "-o", "remount,size=24m", str(small_disk)]
            subprocess.run(resize, check=True, capture_output=True)
        waits.extend(told)

    sweep.run(enlarge)

    assert sweep.status.complete
    ends = [end["outcome"] for end in sweep.ends("disk_full")]
    assert (ends[0], ends[-1]) == ("disk_full", "done")
    assert "of 6.00 MiB free" in waits[0]
    assert sorted(sweep.trials["disk_full"].metrics()["train/loss"]) == list(range(1, STEPS + 1))
    assert (small_disk / "grown" / "trials" / "filler").exists(), "nobody made room but the disk"


@pytest.mark.faults
@pytest.mark.long  # quick ones: tests of the loop and of the worker, with disks that say they are full
def test_full_disk_pauses_the_sweep_and_costs_nothing_but_time(small_disk, make_spec):
    sweep = Sweep(small_disk / "full", make_spec)
    sweep.add("disk_full", logging=Logging(every_steps=1, checkpoint_every_s=0.0))
    filler = small_disk / "full" / "trials" / "filler"
    waits = []

    def free_some(status):
        told = [trial.wait for trial in status.trials if "is full" in trial.wait]
        waits.extend(told)
        if told and filler.exists():
            checkpoints = [p.name for p in sweep.trials["disk_full"].checkpoints.iterdir()]
            assert any(name.startswith("step-") for name in checkpoints), checkpoints
            filler.unlink()

    sweep.run(free_some)

    assert sweep.status.complete
    ends = [end["outcome"] for end in sweep.ends("disk_full")]
    assert (ends[0], ends[-1]) == ("disk_full", "done")
    assert "of 6.00 MiB free" in waits[0]
    assert "a checkpoint needs about 1" in waits[0]
    assert "du -sh" in waits[0]
    trial = sweep.trials["disk_full"]
    assert sorted(trial.metrics()["train/loss"]) == list(range(1, STEPS + 1))
    told = "".join(logs.read(trial, attempt=1))
    assert "── disk_full: " in told
