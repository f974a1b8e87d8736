"""Locks on sweeps, submissions and trials, which vanish with their holder.

A lock is a flock on a file, so that a SIGKILL releases it. Beside the sweep's lock, controller.json
says who holds it, for people and for `memscale status`; it alone never decides. `liveness.py`
reads it.

A network file system takes the locks of a silent machine away. So a controller whose storage did
not answer for STALE_S checks that the sweep is still its own before it writes or decides anything.

A sweep's folder may be moved while its controller runs. Then the locked file is at another path, so
the controller ends instead of making the folder anew.
"""

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from orchestrator.records import storage_errors
from orchestrator.records.errors import BusyError, MovedError, StoreError
from orchestrator.records.json_files import (
    read_json,
    read_record,
    remove_temporary,
    write_json,
)
from orchestrator.records.lock_file import open_lock
from orchestrator.records.processes import ProcessId
from orchestrator.records.sweep_dir import TEMPORARY_CODE, SweepDir, dangling_link
from orchestrator.records.trial_dir import TrialDir

LOCK_FILE = "controller.lock"
HEARTBEAT_S = 1.0
"""How often controller.json is replaced."""
STALE_S = 60.0
"""Silence after which another controller may have taken a sweep over."""


class LockHeld(Exception):
    """Another process trains this trial."""


class Fenced(Exception):
    """The controller has closed the attempt of this rank, so another one may train the trial."""


def seconds_since_boot() -> float:
    """Return seconds that no one sets, and that go on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ControllerLock:
    """Lock on a sweep: one process holds it for all trials, or several for one trial each."""

    def __init__(
        self,
        sweep: SweepDir,
        *,
        submission: int,
        trial: TrialDir | None = None,
        clock: Callable[[], float] = seconds_since_boot,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare; nothing is taken yet.

        Args:
            sweep: Whose lock it is.
            submission: For readers of controller.json.
            trial: The only trial to run; then controller.json lies in its folder.
            clock: Seconds, for silences; those of a machine that slept count.
            wall_clock: Seconds since 1970, for the record.
        """
        self._sweep = sweep
        self._trial = trial
        self._place = sweep.path if trial is None else trial.path
        self._clock = clock
        self._wall_clock = wall_clock
        self._locks: list[tuple[int, Path, int]] = []
        """File, folder and kind of lock."""
        self._updated_at = 0.0
        """When controller.json was last replaced."""
        self._written = False
        self._lost = False
        self.refused: OSError | None = None
        """Why the disk did not take the last heartbeat; None: it did."""
        self.predecessor: dict[str, Any] | None = None
        """controller.json as it was when the lock was taken."""
        self._record: dict[str, Any] = {**ProcessId.own().to_json(), "submission": submission}

    def acquire(self) -> None:
        """Take the lock and write controller.json.

        Raises:
            BusyError: If another live controller holds it; says which and what to do.
            MovedError: If the sweep has no folder any more.
        """
        # Holders of one trial share the sweep's lock with each other, never with one of all trials.
        self._take(self._sweep.path, fcntl.LOCK_EX if self._trial is None else fcntl.LOCK_SH)
        if self._trial is not None:
            try:
                self._take(self._trial.path, fcntl.LOCK_EX)
            except (BusyError, OSError):
                self._let_go()
                raise
        try:
            self.predecessor = read_json(self._place / "controller.json")
        except StoreError:
            self.predecessor = {}  # damaged, so equal to none that anybody has read
        self._record["started_at"] = self._wall_clock()
        self._updated_at = self._clock()
        self.heartbeat({})

    def heartbeat(self, fields: Mapping[str, Any]) -> bool:
        """Replace controller.json, with what status readers need beyond the trial directories.

        It never decides anything, so a full or failing disk is no reason to stop: the next
        heartbeat tries again.

        Returns:
            Whether the disk took it.

        Raises:
            BusyError: If another controller runs the sweep, after a silence. Nothing is written
                then, nor later.
            MovedError: As `check_place`; likewise.
        """
        self._record = {
            **self._record,
            **fields,
            "beat": self._record.get("beat", 0) + 1,
            "updated_at": self._wall_clock(),
        }
        if self._lost:
            return False
        try:
            self.check_place()
            if self.stale:
                self._make_sure()
            write_json(self._place / "controller.json", self._record)
        except OSError as error:
            if not storage_errors.is_transient(error):
                raise
            self.refused = error
            return False
        self._updated_at, self._written, self.refused = self._clock(), True, None
        return True

    def check_place(self) -> None:
        """Check that the locked files are still at their paths, so that records go there, too.

        Raises:
            MovedError: If not: somebody moved or removed the folder. Nothing may be written there
                any more, since it would split the sweep over two folders.
        """
        for lock, folder, _ in self._locks:
            try:
                there = (folder / LOCK_FILE).stat()
            except (FileNotFoundError, NotADirectoryError):
                there = None
            if there is None or not os.path.samestat(os.fstat(lock), there):
                self._lost = True
                raise MovedError(_moved_message(self._sweep, self._locks[0][0]))

    @property
    def stale(self) -> bool:
        """Whether the last heartbeat is so old that another controller may have taken over."""
        return self._clock() - self._updated_at > STALE_S

    def release(self) -> None:
        """Say that the controller ended and let go of the lock."""
        if self._locks:
            self.heartbeat({"ended_at": self._wall_clock()})
            self._let_go()

    @property
    def trial_ids(self) -> tuple[str, ...] | None:
        """The trials that its holder may decide about; None: all of the sweep."""
        return None if self._trial is None else (self._trial.trial_id,)

    def _take(self, folder: Path, how: int) -> None:
        if folder != self._sweep.path:
            folder.mkdir(exist_ok=True)
        try:
            lock = locked(folder / LOCK_FILE, how)
        except FileNotFoundError:
            raise MovedError(
                f"sweep {self._sweep.name}: its folder {folder.absolute()} was moved or removed "
                "since it was submitted; submit again with --runs where it lies now"
            ) from None
        if lock is None:
            raise BusyError(self._held_message(folder))
        self._locks.append((lock, folder, how))

    def _held_message(self, folder: Path) -> str:
        """Return who holds the lock of a folder, as far as its controller.json says, and the fix.

        It does not where a Slurm job runs one trial of the sweep: that holds the sweep's lock, too.
        """
        try:
            other = read_record(folder / "controller.json")
        except StoreError:
            other = None
        if other is not None and other.get("ended_at") is None:
            who = f"process {other['pid']} on {other['host']} runs it already"
        else:
            file = (folder / LOCK_FILE).absolute()
            who = (
                f"another process holds {file}: perhaps a Slurm job of one trial (`lsof` shows it)"
            )
        return (
            f"sweep {self._sweep.name}: {who}; "
            f"watch it with `memscale status {self._sweep.name}`, or end it and submit again"
        )

    def _make_sure(self) -> None:
        """Take lost locks again; raise BusyError if somebody else has taken over."""
        for index, (held, folder, how) in enumerate(self._locks):
            again = locked(folder / LOCK_FILE, how)
            if again is not None:
                # The file system took it from us, and nobody has it. (Shared ones are given twice.)
                os.close(held)
                self._locks[index] = (again, folder, how)
        found = read_record(self._place / "controller.json")
        if found is None or ProcessId.from_json(found) == ProcessId.own():
            return
        # Not ours: an earlier one's if a full disk never took ours, else a later controller's.
        if self._written or found.get("ended_at") is None:
            self._lost = True
            raise BusyError(
                f"sweep {self._sweep.name}: process {found['pid']} on {found['host']} took it over "
                f"while the storage of {self._place} did not answer here; "
                f"watch it with `memscale status {self._sweep.name}`"
            )

    def _let_go(self) -> None:
        while self._locks:
            os.close(self._locks.pop()[0])


def _moved_message(sweep: SweepDir, lock: int) -> str:
    """Return what became of a sweep's folder, and how to go on."""
    before = sweep.path.absolute()
    # The kernel knows the way to an open file, unless another machine moved it.
    now = Path(f"/proc/self/fd/{lock}").readlink().parent
    try:
        known = now != before and os.path.samestat(os.fstat(lock), (now / LOCK_FILE).stat())
    except OSError:
        known = False
    if not known:
        what = f"its folder {before} was moved or removed (its {LOCK_FILE} is not there any more)"
        how = "submit again with --runs where it lies now, or here to begin anew"
    elif now.name == sweep.name:
        what = f"its folder {before} was moved to {now}"
        how = f"submit again with --runs {now.parent}"
    else:
        what = f"its folder {before} was moved to {now}"
        how = f"move it to where it was, or to any folder as {sweep.name}, and submit again"
    return (
        f"sweep {sweep.name}: {what} while it trained, so its trials were stopped; {how}: trials "
        "go on from their last checkpoints"
    )


def locked(file: Path, how: int = fcntl.LOCK_EX) -> int | None:
    """Return the open and locked file, made if missing; None if somebody holds its lock.

    `os.close` lets go of it, and so does the end of the process.
    """
    lock = open_lock(file)
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except BaseException:
        os.close(lock)
        raise
    return lock


@contextmanager
def submitting(sweep: SweepDir, *, wait_s: float = 60.0) -> Iterator[None]:
    """Hold the right to write the records of a submission; delete what killed ones left.

    Raises:
        BusyError: If another `memscale submit` holds it for longer than `wait_s` seconds.
        StoreError: If the sweep's folder cannot be one: its path is a file, or a link to nothing.
    """
    try:
        sweep.path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        path = Path(error.filename)
        why = dangling_link(path) or "there is a file of that name; move it away"
        raise StoreError(f"{path}: {why}") from error
    deadline = time.monotonic() + wait_s
    while (lock := locked(sweep.path / "submit.lock")) is None:
        if time.monotonic() >= deadline:
            raise BusyError(
                f"sweep {sweep.name}: another `memscale submit` of it has been writing its records "
                f"or starting its controller for {wait_s:.0f} s; see whether it hangs, or try again"
            )
        time.sleep(0.1)
    try:
        remove_temporary(sweep.path / "submissions")
        for copy in (sweep.path / "code").glob(f"{TEMPORARY_CODE}*"):
            shutil.rmtree(copy, ignore_errors=True)
        yield
    finally:
        os.close(lock)


class TrialLock:
    """Lock on the training of a trial: held by its rank 0, released by its death.

    The file names the holder's attempt. A rank that stands still keeps its lock. If its attempt is
    closed, it ends without writing when it wakes (`Fenced`), so a later attempt takes the lock: it
    puts another file in the place of the locked one.
    """

    def __init__(self, trial: TrialDir, *, attempt: int) -> None:
        """Prepare; nothing is taken yet."""
        self._trial, self._attempt = trial, attempt
        self._path: Path = trial.path / "lease.lock"
        self._lock: int | None = None

    def acquire(
        self,
        *,
        wait_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take the lock, waiting for a predecessor that is about to die.

        Raises:
            LockHeld: If it is still held after `wait_s` seconds by an attempt that is not closed.
        """
        deadline = clock() + wait_s
        while (lock := self._locked(self._path)) is None:
            if clock() >= deadline:
                if not self._holder_is_fenced():
                    raise LockHeld(
                        f"{self._path}: another process still trains this trial after "
                        f"{wait_s:.0f} s; end it (its pid is in heartbeat.json) and submit again"
                    )
                aside = self._path.with_name(f".{self._path.name}-{secrets.token_hex(4)}")
                lock = self._locked(aside)
                aside.replace(self._path)
                break
            sleep(0.1)
        self._lock = lock

    def release(self) -> None:
        """Let go of the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _locked(self, path: Path) -> int | None:
        """Return the locked file, None if it is held or was replaced just now."""
        lock = locked(path)
        if lock is None:
            return None
        if not os.path.samestat(os.fstat(lock), path.stat()):
            os.close(lock)
            return None
        with suppress(OSError):  # a full disk; then nobody takes the lock from us
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(self._attempt).encode(), 0)
        return lock

    def _holder_is_fenced(self) -> bool:
        """Whether the lock is held by an earlier attempt, and that is closed."""
        holder = self._path.read_text(encoding="utf-8")
        if not holder.isdigit() or int(holder) >= self._attempt:
            return False
        return self._trial.attempt(int(holder)).is_closed()
