"""Examples in docstrings run, and every public function has one unless it needs a folder of runs."""

import doctest
import importlib

import pytest

import analysis
from analysis.fitting import result

OF_FOLDERS = {"fit_sweep", "histories", "report_contents", "tables", "write_report"}
PLAIN = {"all_laws", "save"}
"""Whose whole use is their name and arguments."""
COSTLY = {"choose_law", "fit_families", "fit_partial", "frontier", "multipliers", "next_runs"}
"""They fit many laws, as their own tests do, too."""
PUBLIC = sorted({*analysis._MODULE_OF} - OF_FOLDERS - PLAIN)


def failures_of(thing, module):
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    (test,) = finder.find(thing, thing.__name__, globs=dict(vars(module)))
    return runner.run(test)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in COSTLY else ()) for name in PUBLIC],
)
def test_a_public_function_has_an_example_that_gives_what_it_says(name):
    function = getattr(analysis, name)

    found = failures_of(function, importlib.import_module(function.__module__))

    assert found.attempted
    assert not found.failed


def test_examples_of_results_give_what_they_say():
    found = doctest.testmod(result)

    assert found.attempted
    assert not found.failed
