"""Registry of ranks: whole lines, and bad ones passed over."""

import json
import logging
import subprocess
import sys

from orchestrator.records.processes import ProcessId
from orchestrator.records.rank_registry import RankRequest, register, registered
from orchestrator.records.trial_dir import TrialDir

REGISTER = """
import resource, signal, sys
from orchestrator.records.rank_registry import RankRequest, register
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))
try:
    register(RankRequest.from_json(__import__("json").loads(sys.argv[1])))
except OSError as error:
    print(error.strerror)
"""


def request(tmp_path, rank=0):
    trial = TrialDir(tmp_path / "dense-0")
    trial.attempt(1).path.mkdir(parents=True, exist_ok=True)
    return RankRequest(
        trial_path=str(trial.path), attempt=1, rank=rank, ranks=2, cpus=1, gpus=(), cache=""
    )


def test_every_rank_that_registered_is_returned(tmp_path):
    for rank in (0, 1):
        register(request(tmp_path, rank))

    assert registered(request(tmp_path).attempt_dir) == [ProcessId.own()] * 2


def test_bad_lines_are_passed_over_with_a_warning_that_names_them(tmp_path, caplog):
    one = request(tmp_path)
    file = one.attempt_dir.path / "ranks.jsonl"
    whole = json.dumps({"rank": 0, **ProcessId.own().to_json()})
    bad = [b'{"rank": 0, "ho' + whole.encode(), b'{"host": "n"}', b"[]", b"\0" * 9, b"\xff"]
    file.write_bytes(b"\n".join([*bad, whole.encode(), b'{"rank": 1, "ho']))

    with caplog.at_level(logging.WARNING):
        found = registered(one.attempt_dir)

    assert found == [ProcessId.own()]
    assert [f"{file}: line {n} names no process" in caplog.text for n in range(1, 8)] == [
        *[True] * 5,
        False,
        False,
    ]


def test_a_disk_that_takes_half_a_line_is_an_error(tmp_path):
    text = json.dumps(request(tmp_path).to_json())

    done = subprocess.run(
        [sys.executable, "-c", REGISTER, text], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "File too large"
