"""Captions of figures, whatever their width."""

import textwrap

from hypothesis import given
from hypothesis import strategies as st

from analysis.plotting.axes import CAPTION_LETTERS, caption_lines


def test_no_word_of_a_caption_is_left_alone_on_its_last_line():
    words = "bold: the best of a row; the darker, the farther from it"
    width = 54.0 * 8 / CAPTION_LETTERS

    assert textwrap.wrap(words, 54)[-1] == "it"
    assert caption_lines(words, width) == [
        "bold: the best of a row; the",
        "darker, the farther from it",
    ]


@given(st.lists(st.text("abc-", min_size=1, max_size=12), max_size=30), st.floats(0.2, 9.0))
def test_a_caption_takes_no_more_lines_than_it_needs(words, width):
    letters = int(CAPTION_LETTERS / 8 * width)
    lines = caption_lines(" ".join(words), width)

    assert "".join(lines).replace(" ", "") == "".join(words)
    assert max(map(len, lines), default=0) <= letters
    assert len(lines) == len(textwrap.wrap(" ".join(words), letters, break_on_hyphens=False))
