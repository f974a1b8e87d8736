import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.data.permutation import shuffled

keys = st.tuples(st.integers(-(2**63), 2**63), st.integers(0, 2**31))


@given(n=st.integers(1, 3_000), key=keys)
def test_is_a_bijection(n, key):
    elements = shuffled(np.arange(n), n=n, key=key)
    assert (np.sort(elements) == np.arange(n)).all()


@given(n=st.integers(2**20, 2**62), key=keys, data=st.data())
def test_large_permutations_stay_inside_and_keep_different_positions_apart(n, key, data):
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=50, unique=True)), int)
    elements = shuffled(positions, n=n, key=key)
    assert ((elements >= 0) & (elements < n)).all()
    assert len(np.unique(elements)) == len(positions)


@given(n=st.integers(1, 3_000), key=keys, data=st.data())
def test_an_element_does_not_depend_on_the_others_asked_for(n, key, data):
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=50)), int)
    assert (
        shuffled(positions, n=n, key=key) == shuffled(np.arange(n), n=n, key=key)[positions]
    ).all()


def test_the_signs_of_a_key_matter():
    orders = {
        tuple(shuffled(np.arange(50), n=50, key=key)) for key in [(1, 0), (-1, 0), (0, 1), (0, 0)]
    }
    assert len(orders) == 4


def test_neighbours_are_scattered_and_nothing_is_favoured():
    n, trials = 64, 2_000
    where = np.array([shuffled(np.array([0, 1]), n=n, key=(t, 5)) for t in range(trials)])
    for column in where.T:
        counts = np.bincount(column, minlength=n)
        chi_square = ((counts - trials / n) ** 2 / (trials / n)).sum()
        # 63 degrees of freedom: mean 63, standard deviation 11.2; six of them.
        assert chi_square < 63 + 6 * 11.2
    assert abs(np.corrcoef(where.T)[0, 1]) < 6 / np.sqrt(trials)


def test_values_are_those_of_every_other_machine():
    # Made by this function; whoever changes it changes every text trial.
    expected = [3, 2, 6, 4, 0, 1, 5, 7, 8, 9]
    assert shuffled(np.arange(10), n=10, key=(0, 0)).tolist() == expected


@pytest.mark.parametrize(("n", "positions"), [(0, []), (5, [5]), (5, [-1]), (2**63, [0])])
def test_positions_outside_are_refused(n, positions):
    with pytest.raises(ValueError, match="must lie in"):
        shuffled(np.array(positions, dtype=np.int64), n=n, key=(0,))
