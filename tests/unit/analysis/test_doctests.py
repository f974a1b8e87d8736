"""Examples in docstrings run."""

import doctest

import pytest

from analysis.fitting import fit_law, model_selection, result


@pytest.mark.parametrize("module", [fit_law, model_selection, result], ids=lambda m: m.__name__)
def test_examples_give_what_they_say(module):
    found = doctest.testmod(module)

    assert found.attempted
    assert not found.failed
