"""How much longer trials take than predicted: the median of what was seen, of the nearest kind that was seen."""

import statistics


class Corrections:
    """Measured over predicted seconds, by pace: `architecture` or `architecture/size`."""

    def __init__(self) -> None:
        """Start without a measurement."""
        self._seen: dict[str, list[float]] = {}
        self._ratios: dict[str, float] = {}

    def saw(self, pace: str, ratio: float) -> None:
        """Take in that a trial of that pace took `ratio` times what was predicted."""
        for name in _wider(pace):
            self._seen.setdefault(name, []).append(ratio)
        self._ratios.clear()

    def ratio(self, pace: str) -> float:
        """Return what a prediction is multiplied by: by its own architecture and size, else architecture, else all; 1 if nothing was seen.

        Ratios build on the first predictions, not on corrected ones, so corrections never compound.
        """
        known = self._ratios.get(pace)
        if known is None:
            seen = next((self._seen[name] for name in _wider(pace) if name in self._seen), [1.0])
            known = self._ratios[pace] = statistics.median(seen)
        return known


def _wider(pace: str) -> list[str]:
    """Return the pace itself, its architecture, and what stands for all, each once."""
    return list(dict.fromkeys((pace, pace.partition("/")[0], "")))
