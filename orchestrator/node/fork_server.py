"""Fork server: a process with torch imported that forks ranks in milliseconds.

    python -m orchestrator.node.fork_server PARENT_PID MODULE... [--if-possible MODULE...]

Commands come as JSON lines on stdin, events go as JSON lines to stdout:

    {"start": KEY, "request": {…}, "env": {…}, "log": path, "cwd": path, "alike": …, "idle_s": …}
        → {"started": KEY, "process": {…}}, later {"ended": KEY, "code": n}
    {"signal": KEY, "number": 15}

and {"ready": seconds} once, at first. If stdin is a listening socket, all this goes through the
first connection to it by the same user, which is accepted after importing.

A rank that is done with code 0 stays for `idle_s` seconds, unless `alike` is null or it was
signalled. Then {"started": …} of a command with the same `alike`, environment and resources names
that very process (`rank_process.py`). The command may come before the process is in order again:
{"started": …} follows when it is. A rank that fails, or one that nothing alike follows, ends those
that wait.

Lifetimes: the end of stdin ends the fork server and its ranks. The kernel SIGKILLs the fork server
when its parent dies, and the ranks when the fork server dies. So nothing outlives its parent.

Forking is only sound with a single thread. So the fork server imports and does nothing else, and
refuses to start ranks when a library has started threads.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import stat
import struct
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.node.forked_rank import ForkedRank, kind_of
from orchestrator.records.processes import ProcessId, die_with_parent

STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGHUP})
"""What ranks take for a request to checkpoint and leave."""


class ForkServer:
    """The forking loop. Single-threaded; lives in the main thread of its process."""

    def __init__(self, commands: int, events: int) -> None:
        """Take the file descriptors to talk through."""
        self._commands = commands
        self._events = events
        self._unread = b""
        self._ranks: dict[int, ForkedRank] = {}
        self._wake, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)

    def serve(self, import_s: float) -> None:
        """Report how long importing took, serve commands until they end; then end the ranks."""
        # What is there now stays shared with every rank: the collector must not touch it.
        gc.collect()
        gc.freeze()
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        # A machine that is about to go away sends SIGTERM to all processes, a terminal SIGHUP. The
        # fork server stays for its ranks, which checkpoint first, and passes on what perhaps only
        # it received.
        for number in STOP_SIGNALS:
            signal.signal(number, lambda number, frame: None)
        self._report({"ready": import_s})
        try:
            while self._serve_once():
                pass
        finally:
            for pid, rank in self._ranks.items():
                rank.next = None
                os.kill(pid, signal.SIGKILL)
            while self._ranks:
                self._reap(block=True)

    def _serve_once(self) -> bool:
        """Wait for something to do and do it; return False when stdin has ended."""
        links = {
            rank.link: (pid, rank)
            for pid, rank in self._ranks.items()
            if rank.link and not rank.ready
        }
        waits: list[int | socket.socket] = [self._commands, self._wake, *links]
        readable, _, _ = select.select(waits, [], [], self._idle_left_s())
        # What is done comes first: a signal to it is late, a command may be its next trial.
        for link, (pid, rank) in links.items():
            if link in readable:
                self._take_note(pid, rank)
        if self._wake in readable:
            signals = os.read(self._wake, 4096)
            self._reap(block=False)
            if not STOP_SIGNALS.isdisjoint(signals):
                for rank in self._ranks.values():
                    self._drop_next(rank, signal.SIGTERM)
                self._end_idle()
                for pid in self._ranks:
                    self._signal(pid, signal.SIGTERM)
        if self._commands in readable:
            chunk = os.read(self._commands, 1 << 16)
            if not chunk:
                return False
            *lines, self._unread = (self._unread + chunk).split(b"\n")
            for line in lines:
                self._handle_request(json.loads(line))
        now = time.monotonic()
        self._end_idle(lambda rank: rank.idle_until <= now)
        return True

    def _handle_request(self, command: dict[str, Any]) -> None:
        if "start" in command:
            self._start(command)
            return
        for pid, rank in self._ranks.items():
            if rank.key == command["signal"]:
                self._signal(pid, command["number"])
            elif rank.next is not None and rank.next["start"] == command["signal"]:
                self._drop_next(rank, command["number"])

    def _drop_next(self, rank: ForkedRank, number: int) -> None:
        """End the command that waits for a rank to be ready: it has not begun."""
        if rank.next is not None:
            key, rank.next = rank.next["start"], None
            self._report({"ended": key, "code": -number})

    def _signal(self, pid: int, number: int) -> None:
        """Send a signal to a rank, which takes no further trial then."""
        self._ranks[pid].kind = None
        # It is our child and not yet reaped, so the pid is still its own.
        os.kill(pid, number)

    def _take_note(self, pid: int, rank: ForkedRank) -> None:
        """Report what a rank says that it is done with; give it what waits for it to be ready.

        End it if it is to take no other trial.
        """
        if rank.done():
            self._report({"ended": rank.key, "code": 0})
            rank.key, rank.idle_until = None, time.monotonic() + rank.idle_s
            if rank.kind is None:
                rank.close()
        if rank.ready and rank.next is not None and rank.take(rank.next):
            self._report_start(pid, rank.next)
            rank.next = None

    def _idle_left_s(self) -> float | None:
        """Return the seconds until a rank has waited for too long; None while none waits."""
        until = [rank.idle_until for rank in self._ranks.values() if rank.idle]
        return max(0.0, min(until) - time.monotonic()) if until else None

    def _end_idle(self, which: Callable[[ForkedRank], bool] = lambda rank: True) -> None:
        """Kill ranks that wait."""
        for pid, rank in self._ranks.items():
            if rank.idle and which(rank):
                self._signal(pid, signal.SIGKILL)

    def _start(self, command: dict[str, Any]) -> None:
        """Give a trial to a rank of its kind that is done with its own, or to a new one."""
        kind = kind_of(command)
        free = [
            (pid, rank)
            for pid, rank in self._ranks.items()
            if rank.idle and rank.kind == kind and rank.next is None
        ]
        for pid, rank in sorted(free, key=lambda item: not item[1].ready):
            if not rank.ready:
                rank.next = command
                return
            if rank.take(command):
                self._report_start(pid, command)
                return
        # Ranks of other kinds hold part of a device that this one may need.
        self._end_idle(lambda rank: rank.kind != kind)
        self._fork(command, kind)

    def _fork(self, command: Mapping[str, Any], kind: str | None) -> None:
        ours, its = socket.socketpair() if kind is not None else (None, None)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                die_with_parent(parent)
                if ours is not None:
                    ours.close()
                code = self._become_rank(command, its)
            except BaseException as error:
                with contextlib.suppress(OSError):  # a full disk takes no log
                    traceback.print_exc()
                code = _exit_code(error)
            finally:
                for stream in (sys.stdout, sys.stderr):
                    with contextlib.suppress(OSError):
                        stream.flush()
                # The fork server's clean-up and exit handlers are not the rank's.
                os._exit(code)
        if its is not None:
            its.close()
        self._ranks[pid] = ForkedRank(
            key=command["start"], kind=kind, link=ours, idle_s=command.get("idle_s", 0.0)
        )
        self._report_start(pid, command)

    def _report_start(self, pid: int, command: Mapping[str, Any]) -> None:
        process = ProcessId.of(pid)
        assert process is not None, "a child that was not waited for exists, if only as a zombie"
        self._report({"started": command["start"], "process": process.to_json()})

    def _become_rank(self, command: Mapping[str, Any], link: socket.socket | None) -> int:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        for descriptor in (self._commands, self._events, self._wake, self._wake_write):
            os.close(descriptor)
        for other in self._ranks.values():
            other.close()
        from orchestrator.node import rank_process

        return rank_process.run_trials(command, link)

    def _reap(self, *, block: bool) -> None:
        while self._ranks:
            pid, status = os.waitpid(-1, 0 if block else os.WNOHANG)
            if pid == 0:
                return
            rank = self._ranks.pop(pid, None)
            if rank is None:
                continue
            code = os.waitstatus_to_exitcode(status)
            if rank.key is not None:
                # It may have been killed after it was done, before anybody heard of that.
                done = rank.done()
                self._report({"ended": rank.key, "code": 0 if done else code})
                if code != 0 and not done:
                    # What ended it, a device or a node, may have harmed those that wait.
                    self._end_idle()
            rank.close()
            if rank.next is not None:
                self._fork(rank.next, kind_of(rank.next))

    def _report(self, event: dict[str, Any]) -> None:
        line = json.dumps(event).encode() + b"\n"
        while line:
            try:
                line = line[os.write(self._events, line) :]
            except BrokenPipeError:
                return  # the parent is gone; the end of stdin follows


def import_modules(modules: Sequence[str], optional: Sequence[str] = ()) -> float:
    """Import what ranks need; return the seconds that took.

    Args:
        modules: Failing to import one is the end.
        optional: What only some ranks need; a broken one is left to them.

    Raises:
        RuntimeError: If that started threads.
    """
    start = time.perf_counter()
    for module in modules:
        importlib.import_module(module)
    for module in optional:
        try:
            importlib.import_module(module)
        except Exception:
            traceback.print_exc()
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 -- a count of names, no paths
    if threads != 1:
        raise RuntimeError(
            f"importing {', '.join([*modules, *optional])} started {threads - 1} threads; "
            "forking is unsafe"
        )
    return time.perf_counter() - start


def accept(listener: int) -> int:
    """Return the first connection to a listening Unix socket that comes from the same user."""
    with socket.socket(fileno=listener) as listening:
        while True:
            connection, _ = listening.accept()
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("3i", credentials)[1] == os.geteuid():
                return connection.detach()
            connection.close()


def _exit_code(error: BaseException) -> int:
    """Return the code of a rank that failed before it could write its outcome: no log opens."""
    from orchestrator.control.failure_classifier import EXIT_CODES
    from orchestrator.node.exception_outcome import exception_outcome

    return EXIT_CODES[exception_outcome(error)]


def main(arguments: Sequence[str]) -> None:
    """Start from the command line."""
    # Ray blocks SIGINT in everything it starts; a rank wants to decide for itself.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Slurm tells every process of a job that its time is over, and this one may be importing still.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    die_with_parent(int(arguments[0]))
    commands, events = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    # A library that prints must not talk into the protocol.
    os.dup2(2, 1)
    modules = list(arguments[1:])
    cut = modules.index("--if-possible") if "--if-possible" in modules else len(modules)
    import_s = import_modules(modules[:cut], modules[cut + 1 :])
    if stat.S_ISSOCK(os.fstat(commands).st_mode):
        commands = accept(commands)
        events = os.dup(commands)
    ForkServer(commands, events).serve(import_s)


if __name__ == "__main__":
    main(sys.argv[1:])
