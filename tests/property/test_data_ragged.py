import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workloads.data.facts.token_pieces import prior_bits
from workloads.data.ragged import Ragged
from workloads.data.token_stream import gather_windows, windows_per_epoch

ragged_rows = st.lists(st.lists(st.integers(0, 65_535), max_size=6), max_size=12)


@given(rows=ragged_rows, data=st.data())
def test_rows_come_back_in_any_order(rows, data):
    ragged = Ragged.of(rows, np.uint16)
    assert [ragged[i].tolist() for i in range(len(ragged))] == rows
    assert ragged.lengths.tolist() == [len(row) for row in rows]
    wanted = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=20)) if rows else []
    together = ragged.concatenated(np.array(wanted, dtype=np.int64))
    assert together.tolist() == [value for row in wanted for value in rows[row]]


@given(rows=ragged_rows)
def test_rows_survive_the_disk(rows):
    with tempfile.TemporaryDirectory() as folder:
        Ragged.of(rows, np.uint16).save(Path(folder), "rows")
        again = Ragged.load(Path(folder), "rows")
        assert [again[i].tolist() for i in range(len(again))] == rows


@given(n=st.integers(1, 300), seq_len=st.integers(1, 400))
def test_windows_show_every_token_as_a_target_and_waste_less_than_one(n, seq_len):
    count = windows_per_epoch(n, seq_len)
    assert n <= count * seq_len < n + seq_len
    windows = gather_windows(np.arange(n), np.arange(count), seq_len=seq_len)
    assert (windows[:, 1:] == (windows[:, :-1] + 1) % n).all()
    assert set(windows[:, 1:].reshape(-1)) == set(range(n))


facts = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=60)


@given(facts=facts)
def test_prior_bits_are_those_of_a_distribution_over_the_objects_of_the_relation(facts):
    relations, objects = np.array(facts).T
    bits = prior_bits(relations, objects)
    for relation in set(relations):
        here = relations == relation
        share = {o: 2.0**-b for o, b in zip(objects[here], bits[here], strict=True)}
        assert np.isclose(sum(share.values()), 1)
        for o, p in share.items():
            count = (objects[here] == o).sum()
            assert np.isclose(p, (count + 1) / (here.sum() + len(share)))
