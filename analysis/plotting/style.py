"""Series styles: colour, marker and dashes, the same in every figure.

The first seven colours are Okabe and Ito's (2008). The other eight were added one by one, each as
far from those before it as a grid of colours allowed, in normal vision and in simulated protan,
deutan and tritan vision (Machado, Oliveira and Fernandes 2009). Any two of the fifteen differ by at
least 9.9 CIEDE2000 units in each of the four. That is less than among the first seven (12.5), so
the curves of the eight are also dashed. No two series of a colour share a marker.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import matplotlib
from matplotlib.colors import to_hex

Line = Literal["-"] | tuple[float, tuple[float, ...]]
"""Solid, or dashes as matplotlib takes them."""

_FIRST = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_FURTHER = (
    "#0000B4",
    "#900048",
    "#484800",
    "#6C6C6C",
    "#906CFC",
    "#482424",
    "#906C48",
    "#90B46C",
)
COLOURS = (*_FIRST, *_FURTHER)
MARKERS = ("o", "s", "X", "^", "v", "D", "P", "*", "<", "h", ">", "p", "d")
"""Thirteen and the fifteen colours have no common divisor, so pairs repeat after 195 series. Series
of one colour are two markers apart, and no two such markers look alike."""
DASHES: Line = (0, (5.0, 1.6))


@dataclass(frozen=True, kw_only=True)
class SeriesStyle:
    """The look of one series."""

    colour: str
    marker: str
    line: Line
    """Of curves that claim something; a dotted line always means that nothing was fitted."""


def series_styles(names: Iterable[str]) -> dict[str, SeriesStyle]:
    """Return the style of each series, by the order of first appearance.

    Colours are those of matplotlib's `axes.prop_cycle` where somebody set one.
    """
    colours, solid = list(COLOURS), len(_FIRST)
    cycle = matplotlib.rcParams["axes.prop_cycle"]
    if cycle != matplotlib.rcParamsDefault["axes.prop_cycle"] and "color" in cycle.keys:
        colours = cycle.by_key()["color"]
        solid = len(colours)
    return {
        name: SeriesStyle(
            colour=to_hex(colours[i % len(colours)]).upper(),
            marker=MARKERS[i % len(MARKERS)],
            line="-" if i % len(colours) < solid else DASHES,
        )
        for i, name in enumerate(dict.fromkeys(names))
    }


def marker_size(marker: str, size: float) -> float:
    """Return the size at which a marker looks as large as a circle of `size`."""
    # Its points make a star look smaller.
    return size * 1.3 if marker == "*" else size
