from orchestrator.scheduling.corrections import Corrections


def test_nothing_seen_corrects_nothing():
    assert Corrections().ratio("dense/2^20") == 1.0


def test_own_architecture_and_size_come_before_architecture_before_all():
    corrections = Corrections()
    corrections.saw("dense/2^20", 2.0)
    corrections.saw("dense/2^24", 4.0)
    corrections.saw("moe/2^20", 8.0)

    assert corrections.ratio("dense/2^20") == 2.0
    assert corrections.ratio("dense/2^30") == 3.0
    assert corrections.ratio("peer/2^20") == 4.0
    assert corrections.ratio("moe") == 8.0


def test_one_odd_trial_does_not_move_the_median():
    corrections = Corrections()
    for ratio in (1.1, 1.2, 90.0):
        corrections.saw("dense/2^20", ratio)

    assert corrections.ratio("dense/2^20") == 1.2


def test_later_measurements_count_at_once():
    corrections = Corrections()
    corrections.saw("dense", 2.0)
    assert corrections.ratio("dense/2^20") == 2.0
    corrections.saw("dense/2^20", 5.0)

    assert corrections.ratio("dense/2^20") == 5.0
