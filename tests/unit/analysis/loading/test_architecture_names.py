"""Hints on tables of several architectures."""

import numpy as np

from analysis.loading.pooled_architectures import check_architecture_names

NAMES = ["dense", "dense", "moe", "moe"]


def test_pooled_architectures_are_named():
    assert "row 2 is the first of moe" in check_architecture_names(NAMES).sentence
    assert check_architecture_names(["moe"] * 4) is None


def test_a_law_that_tells_them_apart_needs_no_hint():
    experts = np.asarray([1.0, 1.0, 8.0, 64.0])

    assert check_architecture_names(NAMES, [experts]) is None
    assert check_architecture_names(NAMES, [np.asarray([1.0, 8.0, 8.0, 8.0])]) is not None


def test_experts_in_the_table_point_to_a_law_of_experts():
    assert "routed_joint" in check_architecture_names(NAMES, has_experts=True).sentence
    assert "all with analysis.SharedCoefficients" in check_architecture_names(NAMES).sentence
