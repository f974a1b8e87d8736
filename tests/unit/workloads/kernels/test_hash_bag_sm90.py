"""What the compiler makes of the look-up by signs for an H100 or H200.

Nothing spilled, wide loads, few instructions.
"""

import re
from itertools import product

import pytest

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")

from workloads.kernels.hash_bag import triton as hash_bag
from workloads.kernels.sign_hash import triton as sign_hash

pytestmark = pytest.mark.long  # without a cache, the compiler takes a second for each

TABLES = {"bf16": "*i32:16", "fp16": "*fp16:16", "fp32": "*fp32:16"}
"""bf16 comes in pairs."""
"""Of further variants: each takes a second to compile."""


def _loop(sass: str) -> list[str]:
    """Return the instructions of the only loop."""
    found = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?(.*?);", sass)
    code = [(int(place, 16), instruction) for place, instruction in found]
    (begin, end), *others = [
        (int(target[1], 16), place)
        for place, instruction in code
        if (target := re.search(r"BRA\S* .*?0x([0-9a-f]+)", instruction))
        and int(target[1], 16) < place
    ]
    assert not others
    return [instruction for place, instruction in code if begin <= place <= end]


@pytest.fixture
def bag(compile_for_sm90):
    def compiled(dtype: str):
        words = hash_bag._LINE_BYTES // {"bf16": 4, "fp16": 2, "fp32": 4}[dtype]
        return compile_for_sm90(
            hash_bag._bag,
            {
                "table": TABLES[dtype],
                "rows": "*i32:16",
                "scores": "*fp32:16",
                "out": f"*{dtype}:16",
                **dict.fromkeys(("n_tokens", "n_chunks", "n_words"), "i32:16"),
            },
            {
                "TOKENS": hash_bag._TOKENS,
                "WORDS": words,
                "EVEN": True,
                "PAIRS": dtype == "bf16",
            },
            num_warps=hash_bag._WARPS,
        )

    return compiled


@pytest.mark.parametrize("dtype", TABLES)
def test_rows_are_loaded_16_bytes_at_a_time_and_two_programs_fit(bag, dtype):
    made = bag(dtype)

    assert made.spills == 0
    assert made.registers * 32 * hash_bag._WARPS * 2 <= 2**16
    per_thread = hash_bag._TOKENS * hash_bag._LINE_BYTES // (32 * hash_bag._WARPS * 16)
    wide = len(re.findall(r"\bLDG\.E\.128\b", made.sass))
    assert wide
    assert wide % per_thread == 0
    assert "STG.E.128" in made.sass


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_number_of_16_bits_takes_three_instructions(bag, dtype):
    """One unpacks it, one adds it, and the rows' addresses take a third of a pair's."""
    numbers = hash_bag._TOKENS * 64 // (32 * hash_bag._WARPS)

    loop = _loop(bag(dtype).sass)

    assert sum(instruction.startswith("FFMA") for instruction in loop) == numbers
    assert len(loop) <= 3 * numbers


@pytest.mark.parametrize("dtype", TABLES)
@pytest.mark.parametrize(
    ("row_bytes", "bits"),
    [(128, 8), (512, 10), (128, 10), (512, 8)],
)
def test_one_kernel_for_few_tokens_spills_nothing_and_loads_16_bytes(
    compile_for_sm90, dtype, bits, row_bytes
):
    made = compile_for_sm90(
        hash_bag._hash_and_sum,
        {
            "table": TABLES[dtype],
            "z": "*fp32:16",
            "rows": "*i32:16",
            "scores": "*fp32:16",
            "out": f"*{dtype}:16",
            "factor": "fp32",
            **dict.fromkeys(("n_chunks", "n_words"), "i32:16"),
        },
        {
            "TIMES_L1": True,
            "BITS": bits,
            "PLACES": 8 if bits == 8 else 16,
            "CHUNKS": 32,
            "WORDS": row_bytes // {"bf16": 4, "fp16": 2, "fp32": 4}[dtype],
            "PAIRS": dtype == "bf16",
            "EVEN": True,
        },
        num_warps=1,
    )

    assert made.spills == 0
    assert "LDG.E.128" in made.sass


@pytest.mark.parametrize(
    ("times_l1", "bits", "dtype"),
    [
        (True, 8, "bf16"),
        (False, 10, "fp32"),
        *(
            p
            for p in product([False, True], [8, 10], ["bf16", "fp32"])
            if p not in [(True, 8, "bf16"), (False, 10, "fp32")]
        ),
    ],
)
def test_hashing_spills_nothing_and_loads_a_chunk_of_8_bits_at_once(
    compile_for_sm90, dtype, bits, times_l1
):
    tile = sign_hash._tile(bits)
    warps = tile.pop("num_warps")
    signature = {
        "z": f"*{dtype}:16",
        "z_grad": f"*{dtype}:16",
        "rows": "*i32:16",
        "scores": "*fp32:16",
        "grad": "*fp32:16",
        "factor": "fp32",
        **dict.fromkeys(("n_tokens", "n_chunks", "chunk_stride"), "i32:16"),
    }
    constants = {"token_stride": 1, "TIMES_L1": times_l1, **tile}

    for kernel, alone in (
        (sign_hash._forward, {"one_hot": None}),
        (sign_hash._backward, {"PER_CODE": False, "code_stride": 0}),
    ):
        made = compile_for_sm90(kernel, signature, {**constants, **alone}, num_warps=warps)

        assert made.spills == 0
        if bits == 8:
            assert "LDG.E.128" in made.sass
            assert "STG.E.128" in made.sass
