import math

import pytest

from orchestrator.records import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (9999, "9,999"),
        (12_345, "12.3 k"),
        (4_560_000, "4.56 M"),
        (1.5e9, "1.50 G"),
        (2e13, "20.0 T"),
    ],
)
def test_counts_keep_three_digits(value, text):
    assert units.count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (4.4, "4 s"),
        (125, "2 min 05 s"),
        (12_000, "3 h 20 min"),
        (187_200, "2 d 4 h"),
        (math.inf, "unknown"),
    ],
)
def test_durations(seconds, text):
    assert units.duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00042, "0.420 ms"),
        (0.0123, "12.3 ms"),
        (1.2, "1.20 s"),
        (90, "1 min 30 s"),
        (math.nan, "unknown"),
    ],
)
def test_short_durations_keep_three_digits(seconds, text):
    assert units.short_duration(seconds) == text


@pytest.mark.parametrize(
    ("n_bytes", "text"), [(812, "812 B"), (2048, "2.00 KiB"), (3 * 1024**3, "3.00 GiB")]
)
def test_sizes(n_bytes, text):
    assert units.size(n_bytes) == text


def test_interval_is_left_out_when_there_is_none():
    assert units.interval(0.5, math.nan, math.nan) == "0.5"
    assert units.interval(0.5, 0.4, 0.6) == "0.5 [0.4, 0.6]"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 trials"),
        (1, "1 trial"),
        (2, "2 trials"),
        (0.25, "0.25 trial"),
        (1_000_000, "1,000,000 trials"),
    ],
)
def test_one_thing_is_singular(number, text):
    assert units.plural(number, "trial") == text
