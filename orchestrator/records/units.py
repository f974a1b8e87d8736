"""Numbers for people: counts, bytes, FLOPs, durations."""

import math


def count(value: float) -> str:
    """Return 1,234 / 12.3 k / 4.56 M / 1.23 G / 1.23 T: three significant digits from 10,000 on."""
    if abs(value) < 10_000:
        return f"{value:,.0f}"
    for scale, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{_three_digits(value / scale)} {suffix}"
    raise AssertionError("unreachable: values below 10,000 have returned")


def hours(number: float) -> str:
    """Return a number of hours: 0.0123, 1.5, 1,234.5."""
    return f"{number:,.1f}" if number >= 10 else f"{number:.3g}"


def plural(number: float, noun: str) -> str:
    """Return `1 trial`, `2 trials`, `0 trials`, `0.5 GPU`, `1,000,000 cores`."""
    return f"{number:,.12g} {noun}{'' if 0 < number <= 1 else 's'}"


def flops(value: float) -> str:
    """Return 1.23e+15."""
    return f"{value:.2e}"


def size(n_bytes: float) -> str:
    """Return 812 B / 1.21 KiB / 3.40 MiB / 2.10 GiB."""
    for scale, suffix in ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")):
        if n_bytes >= scale:
            return f"{_three_digits(n_bytes / scale)} {suffix}"
    return f"{n_bytes:.0f} B"


def duration(seconds: float) -> str:
    """Return 4 s / 2 min 05 s / 3 h 20 min / 2 d 4 h."""
    if not math.isfinite(seconds):
        return "unknown"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def short_duration(seconds: float) -> str:
    """Return 0.42 ms / 12.3 ms / 1.20 s, and from a minute on what `duration` does."""
    if not math.isfinite(seconds) or seconds >= 60:
        return duration(seconds)
    scale, suffix = (1.0, "s") if seconds >= 1 else (1e-3, "ms")
    return f"{_three_digits(seconds / scale)} {suffix}"


def interval(value: float, low: float, high: float, *, digits: int = 3) -> str:
    """Return `0.412 [0.401, 0.423]`, or the value alone when there is no interval."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"{value:.{digits}g}"
    return f"{value:.{digits}g} [{low:.{digits}g}, {high:.{digits}g}]"


def _three_digits(value: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:.{digits}f}"
