"""Figures without a display: canvas, shared style, files in SVG, PNG and PDF."""

import io
import struct
import zlib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from analysis.plotting.recording import UnrecordableError, recorded

STYLE: Any = {  # matplotlib types the keys one by one
    "font.family": ["DejaVu Sans", "sans-serif"],  # the latter where an SVG is shown without it
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # else every drawing measures all ticks above; no figure has any
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.labelcolor": "#222222",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "svg.hashsalt": "memscale",  # the same numbers give the same file
    "pdf.fonttype": 42,  # TrueType: many venues refuse Type 3
    "svg.fonttype": "none",  # text that can be searched and edited, not outlines
}


def styled() -> AbstractContextManager[None]:
    """Return the context in which figures are made and written; pyplot stays as it is.

    What somebody set in matplotlib's rcParams holds.
    """
    now, default = matplotlib.rcParams, matplotlib.rcParamsDefault
    return matplotlib.rc_context({k: v for k, v in STYLE.items() if now[k] == default[k]})


class NotebookFigure(Figure):
    """A figure that a notebook shows as its picture without pyplot."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Return the picture of `save`, and its width and height as IPython displays them."""
        width, height = (round(inches * self.dpi) for inches in self.get_size_inches())
        return image(self, "png"), {"width": width, "height": height}


def new_figure(width: float, height: float, *, layout: Any = "constrained") -> Figure:
    """Return a figure of that size in inches, on a canvas of its own instead of pyplot's."""
    figure = NotebookFigure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


KINDS = ("svg", "png", "pdf")
"""Formats of a figure's files."""

DPI = 200
"""Pixels per inch of a PNG."""


def save(figure: Figure, stem: str | Path) -> list[Path]:
    """Write `<stem>.svg`, `<stem>.png` (200 dpi) and `<stem>.pdf`, and return them.

    The layout is settled once, for all three, and the parts are drawn once.

    Args:
        figure: Of `analysis.draw`, or any other.
        stem: Without a suffix; with one of the three, that file alone is written.

    Raises:
        ValueError: If the suffix is that of another format.
    """
    stem = Path(stem)
    suffix = stem.suffix[1:].lower()
    if suffix not in KINDS and suffix in figure.canvas.get_supported_filetypes():
        raise ValueError(
            f"stem: {stem.name} would be {suffix}, but figures are written as {', '.join(KINDS)};"
            " give one of these suffixes, or none for all three"
        )
    stem.parent.mkdir(parents=True, exist_ok=True)
    settle_layout(figure)
    once = drawn_once(figure)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in KINDS]
    if suffix in KINDS:
        paths = [stem]
    for path in paths:
        path.write_bytes(image(once, path.suffix[1:].lower()))
    return paths


def settle_layout(figure: Figure) -> None:
    """Place all parts of a figure where its layout engine puts them, and take the engine away."""
    engine = figure.get_layout_engine()
    if engine is not None:
        with styled():
            engine.execute(figure)
        # Not "none": that leaves an empty engine, for which every file is drawn twice.
        figure.set_layout_engine(None)


def drawn_once(figure: Figure) -> Figure:
    """Return a figure that repeats the strokes of this one; itself if it holds images."""
    with styled():
        try:
            return recorded(figure)
        except UnrecordableError:
            return figure


def image(figure: Figure, kind: str) -> bytes:
    """Return the figure as `svg`, `png` or `pdf`, undated: equal numbers give equal bytes."""
    buffer = io.BytesIO()
    options: dict[str, Any] = {"dpi": DPI, "facecolor": "white"}
    with styled():
        if kind != "png":
            dated = {"svg": "Date", "pdf": "CreationDate"}[kind]
            figure.savefig(buffer, format=kind, metadata={dated: None}, **options)
            return buffer.getvalue()
        figure.savefig(buffer, format="rgba", **options)
    # 45.65 inches are 9129.999... pixels by one product, and 9130 by matplotlib's.
    width, height = (int(round(inches * DPI, 6)) for inches in figure.get_size_inches())
    pixels = np.frombuffer(buffer.getbuffer(), dtype=np.uint8).reshape(height, width, 4)
    return png(pixels[..., :3], dpi=DPI)


def png(pixels: NDArray[np.uint8], *, dpi: int) -> bytes:
    """Return pixels (height, width, 3) as a PNG file.

    Flat colours compress as well without the filters that other writers try on every row, and in a
    third of the time.
    """
    height, width, _ = pixels.shape
    rows = np.empty((height, 1 + 3 * width), dtype=np.uint8)
    rows[:, 0] = 0  # a row begins with its filter: none
    for colour in range(3):  # one at a time: five times as fast as three of every pixel
        rows[:, 1 + colour :: 3] = pixels[..., colour]
    per_metre = round(dpi / 0.0254)
    chunks = (
        (b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)),
        (b"pHYs", struct.pack(">2IB", per_metre, per_metre, 1)),
        (b"IDAT", zlib.compress(rows.data, level=1)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
