from analysis.scaling.outcomes import higher_is_better


def test_direction_of_outcomes():
    assert higher_is_better("factual_recall")
    assert not higher_is_better("loss")
