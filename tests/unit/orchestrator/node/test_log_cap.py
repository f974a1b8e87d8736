"""A log that grows without limit keeps its beginning and its latest lines."""

import os

import pytest

from orchestrator.node import log_cap

pytestmark = pytest.mark.faults


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(log_cap, "LIMIT_BYTES", 10_000)
    monkeypatch.setattr(log_cap, "HEAD_BYTES", 1_000)
    monkeypatch.setattr(log_cap, "TAIL_BYTES", 2_000)


def lines(first, last):
    return "".join(f"line {i}\n" for i in range(first, last)).encode()


def test_a_log_within_the_limit_is_left_alone(tmp_path):
    log = tmp_path / "log.txt"
    log_cap.cap(log)
    log.write_bytes(lines(0, 900))

    log_cap.cap(log)

    assert log.read_bytes() == lines(0, 900)


def test_beginning_and_end_are_kept_and_one_sentence_says_so_however_often_it_is_cut(tmp_path):
    log = tmp_path / "log.txt"
    writer = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for part in range(5):  # a rank that goes on writing
        os.write(writer, lines(2000 * part, 2000 * (part + 1)))
        log_cap.cap(log)
        os.write(writer, f"after cut {part}\n".encode())
    os.close(writer)

    kept = log.read_text().splitlines()
    assert log.stat().st_size < 3_500
    assert kept[:3] == ["line 0", "line 1", "line 2"]
    assert kept[-2:] == ["line 9999", "after cut 4"]
    (cut,) = [i for i, line in enumerate(kept) if line.startswith("──")]
    assert "this log exceeded 10,000 bytes" in kept[cut]
    after = [int(line.split()[1]) for line in kept[cut + 1 : -1]]
    assert after == list(range(after[0], 10_000)), "whole lines, none missing"


def test_one_endless_line_is_cut_too(tmp_path):
    log = tmp_path / "log.txt"
    log.write_bytes(b"x" * 20_000)

    log_cap.cap(log)

    assert log.stat().st_size < 3_500
