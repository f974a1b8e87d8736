"""What the compiler makes of products with one-hot matrices for an H100 or H200."""

import re
from itertools import groupby

import pytest

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")

from workloads.kernels.hash_bag import one_hot

pytestmark = pytest.mark.long  # without a cache, the compiler takes two seconds for each

KERNELS = {
    "sums": (one_hot._sums, one_hot.SUMS),
    "table": (one_hot._table_gradient, one_hot.TABLE_GRADIENT),
    "scores": (one_hot._score_gradient, one_hot.SCORE_GRADIENT),
}


@pytest.fixture
def compiled(compile_for_sm90):
    def compile_kernel(name: str, size: int, *, any_count: bool = False):
        kernel, tile = KERNELS[name]
        pointers = {"rows": "i32", "scores": "fp32", "codes": "i32"}
        pointers |= dict.fromkeys(("table", "grad", "out"), "bf16")
        pointers |= dict.fromkeys(("found", "parts"), "fp32")
        ending = "" if any_count else ":16"
        return compile_for_sm90(
            kernel,
            {
                **{pointer: f"*{kind}:16" for pointer, kind in pointers.items()},
                **dict.fromkeys(("width", "tokens_each"), "i32:16"),
                **dict.fromkeys(("n_tokens", "n_chunks", "n_rows"), f"i32{ending}"),
            },
            {
                "SIZE": size,
                "TOKENS": tile.tokens,
                "ROWS": tile.rows,
                "COLUMNS": tile.columns,
                "ASSEMBLY": True,
            },
            num_warps=tile.warps,
            num_stages=tile.stages,
        )

    return compile_kernel


@pytest.mark.parametrize("size", [16, 32, 2])
@pytest.mark.parametrize("name", KERNELS)
def test_products_run_on_tensor_cores_and_nothing_is_spilled(compiled, name, size):
    made = compiled(name, size)

    assert made.spills == 0
    assert "HGMMA" in made.sass


@pytest.mark.parametrize("name", ["sums", "table"])
def test_a_tile_in_registers_is_read_before_the_next_one_is_written(compiled, name):
    made = compiled(name, 16)

    # Tensor cores read the tile while the program goes on, unless it waits for all of them.
    order = re.findall(r"set\.eq\.u32\.f16x2|wgmma\.(?:mma_async|wait_group\S* \d+)", made.ptx)
    runs = [word for word, _ in groupby(order)]
    begin = runs.index("set.eq.u32.f16x2")
    assert runs[begin : begin + 3] == [
        "set.eq.u32.f16x2",
        "wgmma.mma_async",
        "wgmma.wait_group.sync.aligned 0",
    ]


@pytest.mark.parametrize("name", ["sums", "table"])
def test_two_numbers_of_a_one_hot_tile_take_two_instructions(compiled, name):
    _, tile = KERNELS[name]
    numbers = tile.rows * tile.tokens // (32 * tile.warps)

    made = compiled(name, 16)

    assert len(re.findall(r"\bHSET2\b", made.sass)) == numbers // 2


@pytest.mark.parametrize("name", KERNELS)
def test_any_number_of_tokens_and_chunks_spills_nothing(compiled, name):
    assert compiled(name, 16, any_count=True).spills == 0
