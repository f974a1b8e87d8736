import torch
from hypothesis import given
from hypothesis import strategies as st

from workloads.distributed.collectives import pack, packed_words, unpack

TYPES = [torch.int32, torch.int64, torch.bfloat16, torch.float32, torch.float64]
CONTENTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 5), min_size=1, max_size=2).map(tuple), st.sampled_from(TYPES)
    ),
    min_size=1,
    max_size=4,
)


@given(contents=CONTENTS, before=st.integers(0, 3))
def test_a_parcel_holds_every_tensor_bit_for_bit(contents, before):
    draw = torch.Generator().manual_seed(1)
    # Any bits, those of NaN among them.
    tensors = [
        torch.randint(
            256, (torch.Size(shape).numel() * dtype.itemsize,), generator=draw, dtype=torch.uint8
        )
        .view(dtype)
        .view(shape)
        for shape, dtype in contents
    ]
    buffer = torch.full((before + packed_words(contents),), -1)

    pack(tensors, contents, buffer[before:])
    found = unpack(buffer[before:].clone(), contents)

    assert buffer[:before].tolist() == [-1] * before
    for tensor, arrived in zip(tensors, found, strict=True):
        assert arrived.dtype == tensor.dtype
        assert arrived.shape == tensor.shape
        assert torch.equal(
            arrived.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)
        )


def test_no_more_is_sent_than_what_it_holds_but_for_whole_packed_words():
    ids, weights = ((3, 5), torch.int32), ((3, 5), torch.bfloat16)

    assert packed_words([ids, weights]) == -(-3 * 5 * 4 // 8) + -(-3 * 5 * 2 // 8)


def test_ids_become_as_narrow_as_the_parcel_has_them():
    parcel = torch.empty(1, dtype=torch.int64)
    pack([torch.tensor([7, 2**31 - 1])], [((2,), torch.int32)], parcel)

    assert unpack(parcel, [((2,), torch.int32)])[0].tolist() == [7, 2**31 - 1]
