"""What tests of kernels begin with.

Random reads, and Triton without a GPU, interpreted or compiled for H100 and H200.
"""

import hashlib
import importlib
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, settings
from jaxtyping import Float, Int
from torch import Tensor

# The interpreter takes half a second for an example, and interprets a module once for all of a test.
settings.register_profile(
    "interpreted",
    max_examples=settings.default.max_examples // 8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

Shape = tuple[int, int, int, int]


class Gather(NamedTuple):
    """Random numbers of one case; all but the ids want gradients."""

    table: Float[Tensor, "rows width"]
    ids: Int[Tensor, "bags bag_size"]
    per_row: Float[Tensor, "bags bag_size"]
    """A weight, or the gradient of a product, for every row named."""
    per_bag: Float[Tensor, "bags width"]


@pytest.fixture(
    params=[(1, 1, 1, 1), (7, 5, 3, 2), (13, 1, 11, 17), (64, 24, 37, 16), (1000, 3, 5, 128)],
    ids=str,
)
def shape(request: pytest.FixtureRequest) -> Shape:
    """Rows, width, bags and rows per bag."""
    found: Shape = request.param
    return found


@pytest.fixture
def make_gather() -> Callable[[Shape, torch.dtype], Gather]:
    """Draw a case of a shape (rows, width, bags, rows per bag) and type."""

    def make(shape: Shape, dtype: torch.dtype) -> Gather:
        rows, width, bags, bag_size = shape
        generator = torch.Generator().manual_seed(sum(shape))

        def draw(*sizes: int) -> Tensor:
            return torch.randn(sizes, dtype=dtype, generator=generator, requires_grad=True)

        return Gather(
            table=draw(rows, width),
            ids=torch.randint(rows, (bags, bag_size), generator=generator),
            per_row=draw(bags, bag_size),
            per_bag=draw(bags, width),
        )

    return make


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one compiled kernel takes."""

    registers: int
    """Of 32 bits, per thread."""
    spills: int
    """Instructions that load or store local memory, which is where registers that run out go."""
    shared_bytes: int
    """Shared memory per program."""
    ptx: str
    sass: str


_SPILL = r"\b(?:LDL|STL)\b"


def overwritten_tiles(ptx: str) -> list[str]:
    """Return the loops that write registers which an unfinished product may still read.

    Tensor cores read the left factor of a product from registers while the program goes on. Where
    a loop's last wait leaves products under way, its next pass makes the next factor all the same.
    """
    found = []
    for loop in re.finditer(
        r"^(\$L\w+):.*?bra(?:\.uni)?\s+\1;", ptx, flags=re.DOTALL | re.MULTILINE
    ):
        # Accumulators come first, then the left factor: registers in braces, or a descriptor.
        products = re.findall(r"wgmma\.mma_async\S* \{[^}]*\}, ?(\{?)", loop[0])
        waits = re.findall(r"wgmma\.wait_group\S* (\d+)", loop[0])
        if "{" in products and waits[-1:] != ["0"]:
            found.append(loop[1])
    return found


@pytest.fixture
def compile_for_sm90(pytestconfig: pytest.Config) -> Callable[..., Resources]:
    """Return a function that compiles a Triton kernel for compute capability 9.0; no GPU needed.

    `signature` gives the type of each argument that is no constant, as Triton writes it: "*bf16",
    "i32", "fp32". The ending ":16" promises an address or number divisible by 16, as Triton finds
    out for itself at each launch.

    Triton keeps what it compiles for later runs, and pytest's cache what the disassembler makes of
    it: starting that takes half a second.
    """
    pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if triton.knobs.runtime.interpret:
        pytest.skip("TRITON_INTERPRET=1 leaves nothing to compile")
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"

    kept = pytestconfig.cache.mkdir("disassembled")

    def disassemble(cubin: bytes) -> str:
        found = kept / f"{hashlib.sha256(cubin).hexdigest()}-{triton.__version__}.txt"
        if not found.exists():
            with tempfile.TemporaryDirectory(dir=kept) as folder:
                (Path(folder) / "kernel.cubin").write_bytes(cubin)
                options = ("--dump-resource-usage", "--dump-sass")
                command = [tools / "cuobjdump", *options, "kernel.cubin"]
                done = subprocess.run(command, check=True, cwd=folder, stdout=subprocess.PIPE)
                (Path(folder) / "text").write_bytes(done.stdout)
                (Path(folder) / "text").replace(found)
        return found.read_text()

    def compile_kernel(
        kernel: Any,
        signature: Mapping[str, str],
        constexprs: Mapping[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
    ) -> Resources:
        names = kernel.arg_names
        types = {
            name: "constexpr" if name in constexprs else signature[name].split(":")[0]
            for name in names
        }
        divisible = {
            (position,): [["tt.divisibility", 16]]
            for position, name in enumerate(names)
            if name not in constexprs and signature[name].endswith(":16")
        }
        compiled = triton.compile(
            ASTSource(kernel, types, dict(constexprs), divisible),
            target=GPUTarget("cuda", 90, 32),
            options={"num_warps": num_warps, "num_stages": num_stages},
        )
        assert not overwritten_tiles(compiled.asm["ptx"]), "a product reads it still: wait before"
        sass = disassemble(compiled.asm["cubin"])
        registers = re.search(r"REG:(\d+)", sass)
        assert registers, "cuobjdump did not tell the registers"
        return Resources(
            registers=int(registers[1]),
            spills=len(re.findall(_SPILL, sass)),
            shared_bytes=compiled.metadata.shared,
            ptx=compiled.asm["ptx"],
            sass=sass,
        )

    return compile_kernel


def _change_the_language_once_a_launch(interpreter: ModuleType, patch: pytest.MonkeyPatch) -> None:
    """Spare the interpreter changing the language anew in every call of a device function.

    What a launch or an earlier call changed for a module stays until the launch ends. Finding that
    out took two fifths of these tests' time.
    """
    change, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    changed: set[str] = set()

    def change_once(function: Callable[..., Any]) -> Any:
        if function.__module__ in changed:
            return None  # only what begins a launch undoes its changes
        changed.add(function.__module__)
        return change(function)

    def launch_anew(executor: Any, *arguments: Any, **named: Any) -> None:
        changed.clear()
        launch(executor, *arguments, **named)

    patch.setattr(interpreter, "_patch_lang", change_once)
    patch.setattr(interpreter.GridExecutor, "__call__", launch_anew)


@pytest.fixture
def interpreted() -> Iterator[Callable[[ModuleType], None]]:
    """Return a function that runs a module's kernels in Triton's interpreter on the CPU.

    The environment's TRITON_INTERPRET=1 is read when Triton is imported and then holds for the
    whole process, so GPU tests collected with it would be interpreted too. bf16 arithmetic is
    silently wrong in the interpreter.
    """
    pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")
    # Triton loads this at a first call, and it wants the language as it was.
    importlib.import_module("triton.experimental.gluon")
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    # The interpreter also leaves its own versions of the language behind.
    language = [
        tl,
        tl.core,
        tl.math,
        tl.standard,
        tl.tensor,
        tl.dtype,
        tl.core.tensor_descriptor_base,
    ]
    saved: list[tuple[Any, dict[str, Any]]] = [(place, dict(vars(place))) for place in language]

    def interpret(module: ModuleType) -> None:
        if module not in [place for place, _ in saved]:
            saved.append((module, dict(vars(module))))
        for name, value in vars(module).items():
            if isinstance(value, JITFunction):
                setattr(module, name, InterpretedFunction(value.fn))

    for place in (tl.standard, tl, tl.math):
        interpret(place)
    with pytest.MonkeyPatch.context() as patch:
        _change_the_language_once_a_launch(interpreter, patch)
        yield interpret
    for place, before in saved:
        # It keeps the functions that it has rewritten, and they use names that it added to their
        # modules.
        added = [name for name in vars(place) if name not in before]
        for name in added if isinstance(place, type) else ():
            delattr(place, name)
        for name, value in before.items():
            if vars(place)[name] is not value:
                setattr(place, name, value)
