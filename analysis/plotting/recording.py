"""Display list of a figure: recorded once, replayed for every file format.

Artists take longer to find their ticks, texts and paths than a format takes to write them. What
they draw is therefore recorded in points and repeated at the resolution of each format.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

from matplotlib.artist import Artist
from matplotlib.backend_bases import GraphicsContextBase, RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Affine2D, Bbox, TransformedPath

POINTS = 72
"""Units of a recording per inch."""


@dataclass(frozen=True, kw_only=True)
class _Page:
    """Where a recording is repeated."""

    renderer: Any
    blank: GraphicsContextBase
    """Of the renderer: copying one is quicker than making one."""
    by: Affine2D
    """From points to pixels."""


Stroke = Callable[[_Page], None]
"""Draws something again."""


class UnrecordableError(Exception):
    """The figure has parts that each format must draw itself."""


def recorded(figure: Figure) -> Figure:
    """Return a figure of the same size that repeats what this one draws now.

    Raises:
        UnrecordableError: If it holds images, shaded triangles, or parts to be rasterized.
    """
    recorder = _Recorder()
    dpi, visible = figure.dpi, figure.patch.get_visible()
    figure.dpi = POINTS
    figure.patch.set_visible(False)  # whoever saves says the colour of the ground
    try:
        figure.draw(recorder)
    finally:
        figure.dpi = dpi
        figure.patch.set_visible(visible)
    again = Figure(figsize=tuple(figure.get_size_inches()))
    FigureCanvasAgg(again)
    again.add_artist(_Recording(recorder.strokes))
    return again


class _Recording(Artist):
    """All strokes of a figure."""

    def __init__(self, strokes: list[Stroke]) -> None:
        super().__init__()
        self._strokes = strokes

    def draw(self, renderer: RendererBase) -> None:
        figure = self.get_figure(root=True)
        assert figure is not None
        by = Affine2D().scale(figure.dpi / POINTS)
        page = _Page(renderer=renderer, blank=renderer.new_gc(), by=by)
        for stroke in self._strokes:
            stroke(page)


class _Recorder(RendererBase):
    """Keeps what artists draw, with transforms as they are now: those of a figure follow it."""

    def __init__(self) -> None:
        super().__init__()
        self.strokes: list[Stroke] = []

    def flipy(self) -> bool:
        return False

    def open_group(self, s: str, gid: str | None = None) -> None:
        self.strokes.append(lambda to: to.renderer.open_group(s, gid))

    def close_group(self, s: str) -> None:
        self.strokes.append(lambda to: to.renderer.close_group(s))

    def draw_path(self, gc: Any, path: Any, transform: Any, rgbFace: Any = None) -> None:
        look, at = _look(gc), transform.frozen()
        self.strokes.append(lambda to: to.renderer.draw_path(look(to), path, at + to.by, rgbFace))

    def draw_markers(
        self,
        gc: Any,
        marker_path: Any,
        marker_trans: Any,
        path: Any,
        trans: Any,
        rgbFace: Any = None,
    ) -> None:
        look, size, at = _look(gc), marker_trans.frozen(), trans.frozen()
        self.strokes.append(
            lambda to: to.renderer.draw_markers(
                look(to), marker_path, size + to.by, path, at + to.by, rgbFace
            )
        )

    def draw_path_collection(
        self,
        gc: Any,
        master_transform: Any,
        paths: Any,
        all_transforms: Any,
        offsets: Any,
        offset_trans: Any,
        *looks: Any,
        **further: Any,
    ) -> None:
        if not len(paths):
            return
        look, size, at = _look(gc), master_transform.frozen(), offset_trans.frozen()
        self.strokes.append(
            lambda to: to.renderer.draw_path_collection(
                look(to),
                size + to.by,
                paths,
                all_transforms,
                offsets,
                at + to.by,
                *looks,
                **further,
            )
        )

    def draw_text(
        self,
        gc: Any,
        x: float,
        y: float,
        s: str,
        prop: Any,
        angle: float,
        ismath: Any = False,
        mtext: Any = None,
    ) -> None:
        look = _look(gc)
        anchor = None if mtext is None else copy(mtext)
        if anchor is not None:
            # A format that asks where the text is anchored would get pixels of the first figure.
            anchor.set_position(mtext.get_transform().transform(mtext.get_unitless_position()))

        def stroke(to: _Page) -> None:
            px, py = to.by.transform((x, y))
            if to.renderer.flipy():
                py = to.renderer.get_canvas_width_height()[1] - py
            if anchor is not None:
                anchor.set_transform(to.by)
            to.renderer.draw_text(look(to), px, py, s, prop, angle, ismath=ismath, mtext=anchor)

        self.strokes.append(stroke)

    def draw_tex(self, *_: Any, **__: Any) -> None:
        raise UnrecordableError("text of LaTeX")

    def draw_image(self, *_: Any, **__: Any) -> None:
        raise UnrecordableError("an image")

    def draw_gouraud_triangles(self, *_: Any, **__: Any) -> None:
        raise UnrecordableError("shaded triangles")

    def start_rasterizing(self) -> None:
        raise UnrecordableError("parts to be rasterized")

    def start_filter(self) -> None:
        raise UnrecordableError("filtered parts")


def _look(gc: GraphicsContextBase) -> Callable[[_Page], GraphicsContextBase]:
    """Return what gives any renderer this graphics context, as it is now."""
    kept = copy(gc)
    rectangle = gc.get_clip_rectangle()
    clip = None if rectangle is None else Bbox(rectangle.frozen().get_points())
    clip_path: Any = gc.get_clip_path()
    path, transform = clip_path
    at = None if transform is None else transform.frozen()

    def look(to: _Page) -> GraphicsContextBase:
        own = copy(to.blank)
        own.copy_properties(kept)
        own.set_clip_rectangle(None if clip is None else clip.transformed(to.by))
        own.set_clip_path(None if path is None or at is None else TransformedPath(path, at + to.by))
        return own

    return look
