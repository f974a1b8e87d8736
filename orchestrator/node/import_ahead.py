"""Program of a warm interpreter: imports packages, then runs a module.

    python -P import_ahead.py MODULE PARENT_PID LISTENER PACKAGE...

`warm_interpreter.py` starts it. When the packages are imported it reads one JSON object from
standard input:

    {"arguments": […], "environment": {…}, "log": path}

It then takes these variables, writes its errors to the log, puts the descriptor LISTENER in the
place of standard input, and calls `main(arguments)` of MODULE. If standard input ends without that,
so does it.

Nothing of this project is imported before: MODULE comes from the first folder of the new
PYTHONPATH, a copy of the code that does not exist yet when this program starts.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
from typing import Any

PR_SET_PDEATHSIG = 1


def main(module: str, parent: str, listener: str, *packages: str) -> None:
    """Import the packages, wait for the rest, and run the module."""
    # As `records.processes.die_with_parent`, which may not be imported here.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        return
    for package in packages:
        importlib.import_module(package)
    with os.fdopen(os.dup(0), "rb") as told:
        content = told.read()
    if content:
        _become(module, json.loads(content), int(listener))


def _become(module: str, told: dict[str, Any], listener: int) -> None:
    """Go on as a process that was started with these variables, and run the module."""
    log = os.open(told["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.lseek(2, 0, os.SEEK_SET)
    while said := os.read(2, 1 << 16):  # what importing printed, into a file in memory
        os.write(log, said)
    os.dup2(log, 2)
    os.close(log)
    os.dup2(listener, 0)
    os.close(listener)
    os.environ.clear()
    os.environ.update(told["environment"])
    paths = told["environment"]["PYTHONPATH"].split(os.pathsep)
    sys.path[:0] = [path for path in paths if path not in sys.path]
    importlib.import_module(module).main(told["arguments"])


if __name__ == "__main__":
    main(*sys.argv[1:])
