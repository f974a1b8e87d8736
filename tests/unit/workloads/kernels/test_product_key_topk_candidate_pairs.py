"""How candidate pairs are put into blocks.

Each once, in pieces that are sorted whatever the scores are.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workloads.kernels.product_key_topk.reference import candidate_pairs

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")

from workloads.kernels.product_key_topk.candidate_pairs import Arrangement, arrange, runs

KNN = st.integers(1, 64)


def _places(made: Arrangement, log: int) -> list[list[tuple[int, int] | None]]:
    """Return for each block what its places have, read from the table as the kernel reads it."""
    bits = 2 * log + 1
    entries = [(made.table >> (bits * i)) % 2**bits for i in range(made.blocks * 2**log)]
    pairs = [((e >> 1) % 2**log, e >> (1 + log)) if e % 2 else None for e in entries]
    return [pairs[i : i + 2**log] for i in range(0, len(pairs), 2**log)]


def _log(knn: int) -> int:
    return max(4, (knn - 1).bit_length())


@given(knn=KNN)
def test_each_candidate_has_one_place(knn):
    made = arrange(knn, _log(knn))

    found = [pair for block in _places(made, _log(knn)) for pair in block if pair is not None]
    assert sorted(found) == sorted(zip(*candidate_pairs(knn), strict=True))
    assert made.table < 2 ** ((2 * _log(knn) + 1) * made.blocks * 2 ** _log(knn))


@given(knn=KNN, seed=st.integers(0, 9))
def test_pieces_are_sorted_falling_and_rising_by_turns(knn, seed):
    log = _log(knn)
    generator = torch.Generator().manual_seed(seed)
    left, right = torch.rand(2, knn, generator=generator).sort(descending=True).values.tolist()
    made = arrange(knn, log)

    for number, block in enumerate(_places(made, log)):
        size = 2 ** ((made.sizes >> (4 * number)) & 15)
        # A place without a pair is worth less than any pair.
        worth = [-1.0 if pair is None else left[pair[0]] + right[pair[1]] for pair in block]
        for i in range(0, len(worth), size):
            piece = worth[i : i + size]
            rising = (i // size) % 2 == 1 or (size == len(worth) and number > 0)
            assert piece == sorted(piece, reverse=not rising)


def test_runs_of_32():
    assert [len(run) for run in runs(32)] == [32, 31, 15, 14, 8, 7, 5, 4, 2, 1]
    # Two blocks need no sorting, the third one merge, the last nearly all.
    assert arrange(32, 5).sizes == 5 | 5 << 4 | 4 << 8 | 1 << 12
