"""What the compiler makes of the gradient of rotary positions for an H100 or H200.

Memory by vectors of 16 bytes, nothing spilled, nothing exchanged between threads.
"""

import re

import pytest

pytestmark = pytest.mark.long  # without a cache, the compiler takes seconds for each

triton = pytest.importorskip(
    "workloads.kernels.rotary.triton", reason="a CPU build of torch comes without Triton"
)

CASES = {
    # Head width, turning columns, type, bytes of a number.
    "30m": (64, 64, "bf16", 2),
    "1.3b": (128, 128, "bf16", 2),
    "fp16": (128, 128, "fp16", 2),
    "fp32": (64, 64, "fp32", 4),
    "quarter": (128, 32, "bf16", 2),
}


def _compiled(compile_for_sm90, case, **arguments):
    d_head, columns, kind, size = case
    constants = triton.tile(d_head, columns, size)
    warps = constants.pop("num_warps")
    pointers = ("query", "key", "value", "rotation", "out")
    signature = dict.fromkeys(triton._gradient.arg_names, "i32:16")
    signature |= dict.fromkeys(pointers, f"*{kind}:16")
    signature |= dict.fromkeys(("seq", "n_heads", "n_kv_heads"), "i32")
    types = {name: of for name, of in arguments.items() if isinstance(of, str)}
    constants |= {name: of for name, of in arguments.items() if name not in types}
    return compile_for_sm90(triton._gradient, signature | types, constants, num_warps=warps)


@pytest.mark.parametrize("name", CASES)
def test_memory_is_read_and_written_in_vectors_and_nothing_spills(compile_for_sm90, name):
    made = _compiled(compile_for_sm90, CASES[name])

    print(name, made.registers, made.spills, made.shared_bytes)
    accesses = re.findall(r"\b(?:ld|st)\.global\S*", made.ptx)
    assert accesses
    assert all(access.endswith(".v4.b32") for access in accesses)
    assert (made.spills, made.shared_bytes) == (0, 0)
    # Five programs of four warps on each multiprocessor, so that enough bytes are under way.
    assert made.registers <= 96


@pytest.mark.parametrize(
    "arguments",
    [
        # Triton makes constants of arguments that are 1, and 64 bits of what needs them.
        {"n_heads": 1, "n_kv_heads": 1, "seq": 1, "query_head": 1, "key_seq": 1, "value_head": 1},
        {"query_batch": "i64", "key_seq": "i64", "value_head": "i64"},
        {"rotation": "*fp32:16"},
    ],
    ids=["ones", "large strides", "fp32 table"],
)
def test_other_arguments_compile(compile_for_sm90, arguments):
    assert _compiled(compile_for_sm90, CASES["30m"], **arguments).spills == 0
