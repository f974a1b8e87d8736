"""A job for tests: writes down what it finds of its process, then changes all of it."""

import json
import os
import random
import signal
import time
import warnings
from pathlib import Path

import numpy as np
import torch


class SlowToGo:
    """Garbage that takes its time to collect: until a file is there."""

    def __init__(self, gate):
        self.gate, self.itself = gate, self

    def __del__(self):
        while not self.gate.exists():
            time.sleep(0.01)


def run(request, spec, reporter):
    found = {
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "random": random.random(),
        "numpy": np.random.random(),
        "filters": len(warnings.filters),
        "files": sorted(
            str(link.readlink()).replace(str(request.trial.path), "TRIAL")
            for link in Path("/proc/self/fd").iterdir()
            if link.is_symlink() and not str(link.readlink()).startswith(("socket:", "/proc/"))
        ),
        "torch": torch.rand(()).item(),
        "pid": os.getpid(),
    }
    (request.attempt_dir.path / "state.json").write_text(json.dumps(found))
    warnings.warn("a warning that comes once", stacklevel=1)
    os.environ["LEFT_BY_A_TRIAL"] = "1"
    os.environ["OMP_NUM_THREADS"] = "7"
    os.chdir("/")
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    warnings.simplefilter("ignore")
    if spec.data.get("slow_to_go"):
        SlowToGo(request.trial.path / "gone")
    if spec.data.get("keeps_dtype"):
        torch.set_default_dtype(torch.float64)
    if spec.data.get("is_told_to_stop"):
        os.kill(os.getpid(), signal.SIGTERM)
    return {"train/loss": 1.0}
