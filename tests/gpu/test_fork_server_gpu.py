"""The fork server imports the compiler for its ranks, and stays apart from CUDA, which would forbid forking."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

CODE = """
import importlib, json, os, sys
from orchestrator.node.fork_server_process import COMPILER_ENVIRONMENT
from orchestrator.node.fork_server_process import COMPILER_MODULES, TRAINING_MODULES, workload_modules
from orchestrator.node.warm_interpreter import COMPILER_PACKAGES, PACKAGES
os.environ.update(COMPILER_ENVIRONMENT)
ahead = [*PACKAGES, *COMPILER_PACKAGES] if sys.argv[1] == "ahead" else []
for name in [*ahead, *TRAINING_MODULES, *workload_modules(), *COMPILER_MODULES]:
    importlib.import_module(name)
import torch
found = {
    "threads": len(os.listdir("/proc/self/task")),
    "asked_for_triton": torch.utils._triton.has_triton.cache_info().currsize,
}
read, write = os.pipe()
if os.fork() == 0:
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    compiled = torch.compile(lambda x: (x * 2 + 1).sum())
    os.write(write, str(float(compiled(torch.ones(100, device="cuda")))).encode())
    os._exit(0)
os.close(write)
found["compiled"] = os.read(read, 100).decode()
print(json.dumps(found))
"""


@pytest.mark.parametrize("packages", ["ahead", "by the fork server"])
def test_a_rank_compiles_with_what_the_fork_server_has_imported(tmp_path, packages):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE, packages],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        },
        timeout=300,
    )

    assert json.loads(done.stdout.splitlines()[-1]) == {
        "threads": 1,
        "asked_for_triton": 0,
        "compiled": "300.0",
    }, done.stderr[-2000:]
