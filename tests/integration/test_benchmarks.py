"""Benchmarks on a CPU, as small as they go: that they run and print their rows, not how fast.

What they call changes, and they run by hand, on a GPU: one that fails there has cost its hour.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.long]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL_LAYER = "--tokens 64 --n-keys 16 --width 32 --d-model 32 --repeats 3"
SMALL_RANKS = "--device cpu --only dense --preset d16 --tokens 512 --seq-len 64"


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        ("architectures.py --preset d16 --tokens 256 --seq-len 32 --only dense,memory_plus", 2),
        ("bag_of_a_rank.py --device cpu --tokens 3 --rows 1024 --repeats 1", 6),
        (f"data_parallel.py {SMALL_RANKS} --gpus 2 --repeats 3", 1),
        ("decode_architectures.py --only dense,memory_plus --presets d16 --batches 1,2", 2),
        ("decode_latency.py --device cpu --tiny", 6),
        (f"dense_sharding.py {SMALL_RANKS} --gpus 2", 2),
        ("host_table_step.py --device cpu --small", 4),
        (f"sharding.py --device cpu --gpus 1,2 --layout columns {SMALL_LAYER}", 7),
        (f"sharding.py --device cpu --gpus 1,2 --layout rows {SMALL_LAYER}", 5),
        ("start_times.py --device cpu --preset d16 --trials 2", 2),
        ("step_profile.py memory_plus d16 --device cpu --batch-tokens 512 --seq-len 64", 5),
        (f"weak_scaling.py {SMALL_RANKS} --vocab-size 512 --steps 12", 2),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else None,
)
def test_a_benchmark_prints_its_rows(tmp_path, command, rows):
    name, *arguments = command.split()

    ended = subprocess.run(
        [sys.executable, str(BENCHMARKS / name), *arguments],
        cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr[-4000:]
    # A row has three cells at least, one of them a number with a point.
    cells = [re.split(r"\s*\|\s*|\s{2,}", line.strip(" |")) for line in ended.stdout.splitlines()]
    found = [row for row in cells if len(row) >= 3 and any(_is_number(cell) for cell in row)]
    assert len(found) == rows, ended.stdout


@pytest.mark.parametrize(
    ("name", "rehearse"),
    [("experts.py", ""), ("start_times.py", "; --device cpu rehearses it")],
)
def test_a_benchmark_without_its_gpu_says_so(tmp_path, name, rehearse):
    ended = subprocess.run(
        [sys.executable, str(BENCHMARKS / name)],
        cwd=tmp_path, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert ended.stderr == f"needs a GPU, and torch sees none{rehearse}\n"
    assert ended.returncode == 1


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"[\d,]*\d\.\d+( ±.*)?", cell) is not None
