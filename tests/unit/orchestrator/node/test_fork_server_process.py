"""The fork server as a child: what it imports, and what happens when that forbids forking."""

import os
from pathlib import Path

from orchestrator.node import fork_server_process
from orchestrator.node.fork_server_process import ForkServerProcess
from orchestrator.records.rank_registry import TRAIN


def test_goes_on_without_a_compiler_that_starts_threads(tmp_path, monkeypatch, caplog):
    (tmp_path / "compiler.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=[60], daemon=True).start()"
    )
    code = Path(fork_server_process.__file__).parents[2]
    monkeypatch.setattr(fork_server_process, "visible_gpus", lambda: ["a GPU"])
    monkeypatch.setattr(fork_server_process, "TRAINING_MODULES", ("orchestrator.node.worker",))
    monkeypatch.setattr(fork_server_process, "COMPILER_MODULES", ("compiler",))
    monkeypatch.setattr(fork_server_process, "workload_modules", list)
    path = os.pathsep.join([str(tmp_path), str(code)])

    server = ForkServerProcess(
        tmp_path / "log", environment={"PYTHONPATH": path}, job=TRAIN, own_group=False
    )
    try:
        server.wait_until_ready()
        assert server.alive()
    finally:
        server.close()
    assert "started 1 threads; forking is unsafe" in (tmp_path / "log").read_text()
    assert [message for message in caplog.messages if "without the compiler" in message]
