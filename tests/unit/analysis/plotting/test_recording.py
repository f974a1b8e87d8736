"""A figure that is drawn once gives the files that matplotlib writes of the figure itself."""

import io
import re

import numpy as np
import pytest
from matplotlib.artist import Artist
from matplotlib.patches import Circle
from PIL import Image

from analysis.plotting import canvas
from analysis.plotting.recording import UnrecordableError, recorded


def picture():
    """Lines, markers, clipped bands, hatches, arrows, rotated and raised text, two scales."""
    with canvas.styled():
        figure = canvas.new_figure(5.0, 3.0)
        left, right = figure.subplots(1, 2)
        x = np.geomspace(1.0, 100.0, 40)
        left.set(xscale="log", xlabel="size", ylabel="loss", title="curves", ylim=(0.2, 0.9))
        left.plot(x, x**-0.3, "o-", markersize=4, label="runs")
        left.fill_between(x, 0.8 * x**-0.3, 1.3 * x**-0.3, alpha=0.3)
        left.axvspan(30, 100, facecolor="#EEEEEE", edgecolor="#AAAAAA", hatch="////")
        left.annotate("here", (10, 0.5), (20, 0.8), arrowprops={"arrowstyle": "->"})
        left.legend()
        right.scatter([1, 2, 3], [3, 1, 2], s=[10, 40, 90], c=["r", "g", "b"])
        right.text(0.5, 0.5, "mid\n10¹²", rotation=30, transform=right.transAxes)
        (line,) = right.plot([1, 3], [1, 3], "--")
        line.set_clip_path(Circle((2, 2), 0.6, transform=right.transData))
        figure.supxlabel("below")
        canvas.settle_layout(figure)
    return figure


def pixels(figure):
    grey = Image.open(io.BytesIO(canvas.image(figure, "png"))).convert("L")
    return np.asarray(grey, dtype=np.float64)


NUMBER = re.compile(r"-?\d+\.?\d*")


def strokes(figure):
    """Return what an SVG draws, in order: words, and the numbers between them, without names."""
    svg = re.sub(r'"[^"]*#[^"]*"|id="[^"]*"', "", canvas.image(figure, "svg").decode())
    found = re.findall(r' d="[^"]*"|<use [^>]*>|clip-path|transform="[^"]*"|style="[^"]*"', svg)
    return [NUMBER.sub("0", one) for one in found], [float(n) for n in NUMBER.findall(str(found))]


def test_a_png_holds_the_pixels_and_their_size():
    colours = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)

    read = Image.open(io.BytesIO(canvas.png(colours, dpi=200)))

    np.testing.assert_array_equal(np.asarray(read), colours)
    assert read.info["dpi"] == pytest.approx((200, 200), rel=1e-3)


def test_every_format_is_that_of_the_figure_itself():
    figure = picture()
    once = canvas.drawn_once(figure)

    assert once is not figure
    (words, numbers), (own_words, own_numbers) = strokes(once), strokes(figure)
    assert words == own_words
    # In points. Texts are measured by the fonts' outlines, where each format has its own way.
    assert numbers == pytest.approx(own_numbers, abs=1.0)
    pdfs = [len(canvas.image(one, "pdf")) for one in (once, figure)]
    assert pdfs[0] == pytest.approx(pdfs[1], rel=0.01)
    # A text may be a pixel further, for it is not hinted for this resolution when it is placed.
    own, again = pixels(figure), pixels(once)
    assert own.shape == again.shape == (600, 1000)
    assert np.abs(own - again).mean() < 0.15 * np.abs(own - 255).mean()


def test_artists_draw_once_for_all_formats(tmp_path):
    class Counted(Artist):
        drawn = 0

        def draw(self, renderer):
            self.drawn += 1

    figure, counted = picture(), Counted()
    figure.add_artist(counted)

    paths = canvas.save(figure, tmp_path / "one")

    assert counted.drawn == 1
    assert [path.suffix for path in paths] == [".svg", ".png", ".pdf"]
    assert all(path.stat().st_size > 1000 for path in paths)


@pytest.mark.parametrize("kind", ["svg", "png", "pdf", "PDF"])
def test_a_suffix_is_the_one_format_that_is_written(tmp_path, kind):
    (path,) = canvas.save(picture(), tmp_path / f"v1.5.{kind}")

    assert list(tmp_path.iterdir()) == [path] == [tmp_path / f"v1.5.{kind}"]
    begins = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    assert path.read_bytes().startswith(begins[kind.lower()])


def test_any_other_suffix_is_part_of_the_name(tmp_path):
    names = [path.name for path in canvas.save(picture(), tmp_path / "v1.5")]

    assert names == ["v1.5.svg", "v1.5.png", "v1.5.pdf"]


@pytest.mark.parametrize("kind", ["jpg", "EPS", "tiff"])
def test_the_suffix_of_another_format_is_refused(tmp_path, kind):
    with pytest.raises(ValueError, match=rf"stem: d\.{kind} would be .* written as svg, png, pdf"):
        canvas.save(picture(), tmp_path / f"d.{kind}")

    assert not list(tmp_path.iterdir())


def test_text_is_text_in_vector_files():
    once = canvas.drawn_once(picture())

    pdf, svg = canvas.image(once, "pdf"), canvas.image(once, "svg").decode()

    assert b"/Type3" not in pdf
    assert b"/CIDFontType2" in pdf  # Type 42, that is TrueType
    assert re.search("<text [^>]*>curves</text>", svg)


def test_a_figure_is_as_before_once_it_was_recorded():
    figure = picture()
    before = figure.dpi, figure.patch.get_visible(), canvas.image(figure, "svg")

    recorded(figure)

    assert (figure.dpi, figure.patch.get_visible(), canvas.image(figure, "svg")) == before


@pytest.mark.parametrize("part", ["image", "rasterized", "shaded"])
def test_what_cannot_be_repeated_is_drawn_by_each_format(part):
    figure = canvas.new_figure(1.0, 1.0, layout=None)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    if part == "image":
        axes.imshow(np.eye(3), cmap="gray")
    elif part == "shaded":
        axes.tripcolor([0, 1, 0], [0, 0, 1], [0.0, 1.0, 2.0], shading="gouraud")
    else:
        axes.plot([0, 1], [0, 1], rasterized=True)

    with pytest.raises(UnrecordableError):
        recorded(figure)

    assert canvas.drawn_once(figure) is figure
    assert pixels(figure).min() < 150


@pytest.mark.parametrize("height", [0.29, 0.57, 1.13, 2.01])
def test_a_height_that_is_no_whole_number_of_pixels_by_one_product_is_written(height):
    assert int(height * canvas.DPI) < round(height * canvas.DPI), "58 pixels, or 57.999…"

    assert pixels(canvas.new_figure(0.5, height, layout=None)).shape == (
        round(height * canvas.DPI),
        100,
    )
