"""Guard of an MPS daemon: `mps_guard.py CONTROL FOLDER`.

The daemon runs for as long as the guard's parent lives. The parent holds the guard's standard input
and never writes, so the daemon and its servers end when the parent does, however that happens; then
the folder is deleted. A line on standard output says that the daemon listens.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

LOOK_S = 0.05
"""How often the daemon's socket is looked for while it starts."""
QUIT_S = 5.0
"""How long the daemon may take to end by itself."""


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of the daemon and of its clients."""
    return {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder)}


def main(control: str, folder: Path) -> None:
    """Run the daemon until standard input or the daemon ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The parent hears them too, and first lets its ranks checkpoint.
        signal.signal(number, signal.SIG_IGN)
    variables = {**os.environ, **environment(folder)}
    # The daemon's clients choose their GPUs by the numbers of all of them.
    variables.pop("CUDA_VISIBLE_DEVICES", None)
    (folder / "pipe").mkdir(mode=0o700)
    with (folder / "output.txt").open("wb") as output:
        daemon = subprocess.Popen(
            [control, "-f"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=variables,
            process_group=0,
            preexec_fn=_die_with_parent,
        )
    try:
        _serve(daemon, folder)
        _end(daemon, control, variables)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _die_with_parent() -> None:
    """Have the kernel end the daemon if this guard is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _serve(daemon: subprocess.Popen[bytes], folder: Path) -> None:
    """Say when the daemon listens; return when it or standard input has ended."""
    announced = False
    while daemon.poll() is None:
        if not announced and (folder / "pipe" / "control").exists():
            announced = True
            os.write(sys.stdout.fileno(), b"ready\n")
        if select.select([sys.stdin], [], [], 1.0 if announced else LOOK_S)[0]:
            return


def _end(daemon: subprocess.Popen[bytes], control: str, variables: dict[str, str]) -> None:
    """Ask the daemon to end its servers and itself, and wait a little for both."""
    if daemon.poll() is not None:
        return
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run([control], input=b"quit\n", env=variables, timeout=QUIT_S, check=False)
    deadline = time.monotonic() + QUIT_S
    while daemon.poll() is None and time.monotonic() < deadline:
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
