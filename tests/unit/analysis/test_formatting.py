import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.formatting import count


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (812.0, "812"),
        (12_340.0, "12.3 k"),
        (999.4e12, "999 T"),
        (999.6e12, "1.00e+15"),
        (8.12e134, "8.12e+134"),
        (float("inf"), "∞"),
    ],
)
def test_a_count_is_short(value, text):
    assert count(value) == text


@given(st.floats(0, allow_nan=False))
def test_a_count_of_any_size_fits_a_cell(value):
    assert len(count(value)) <= 9
