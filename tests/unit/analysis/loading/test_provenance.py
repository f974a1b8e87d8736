from analysis.loading.provenance import common_facts


def test_what_all_share_is_told_once_and_differences_are_counted():
    facts = common_facts(
        [
            {"packages": {"torch": "2.13.0"}, "gpus": [], "host": "a"},
            {"packages": {"torch": "2.13.0"}, "gpus": [], "host": "b"},
            {"packages": {"torch": "2.12.0"}, "gpus": [], "host": "b", "note": None},
        ]
    )

    assert facts == {
        "packages.torch": "2.12.0 (1 trial); 2.13.0 (2 trials)",
        "gpus": "",
        "host": "a (1 trial); b (2 trials)",
    }


def test_values_that_always_differ_and_long_ones_stay_short():
    facts = common_facts([{"pid": i, "diff": "x" * 5000} for i in range(9)])

    assert facts["pid"] == "9 different values"
    assert len(facts["diff"]) < 250
    assert facts["diff"].endswith("(5,000 characters)")
