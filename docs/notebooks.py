"""Outputs of the notebooks: `python docs/notebooks.py [PATH …]` executes them and stores what they show.

Pictures are stored with few colours, because a repository keeps every version. Tests execute the notebooks anew and
compare words and numbers with `differences`.
"""

import argparse
import base64
import io
import math
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
COLOURS = 48
"""Of a stored picture."""
TOLERANCE = 0.02
"""Relative difference of two numbers that counts as none: another CPU sums in another order."""
VARIABLES = ("MEMSCALE_RUNS", "MEMSCALE_SWEEP", "MEMSCALE_SCALING_DATA")
"""Of the environment, by which notebooks find somebody's sweeps."""
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,_]*\.?\d*(?:e[-+]?\d+)?")
_ADDRESS = re.compile(r"0x[0-9a-f]+|/tmp/\S+|\d+ KiB")


def execute(path: Path, folder: Path, *, timeout_s: int = 300) -> Any:
    """Return a notebook with fresh outputs, run in `folder`."""
    client = NotebookClient(
        nbformat.read(path, as_version=4),
        timeout=timeout_s,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
    )
    return client.execute()


def stored(path: Path, fresh: Any) -> Any:
    """Return the notebook of a file with the outputs of a fresh execution, its pictures made small."""
    kept = nbformat.read(path, as_version=4)
    for cell, done in zip(kept.cells, fresh.cells, strict=True):
        if cell.cell_type != "code":
            continue
        cell.outputs, cell.execution_count = done.outputs, done.execution_count
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = _small(output.data["image/png"])
    return kept


def _small(picture: str) -> str:
    from PIL import Image

    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    half = image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    half.quantize(COLOURS).save(buffer, format="png", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def differences(kept: Any, fresh: Any, *, tolerance: float = TOLERANCE) -> list[str]:
    """Return a sentence for every code cell whose outputs differ in kind, words or numbers."""
    found = []
    for i, (cell, done) in enumerate(zip(kept.cells, fresh.cells, strict=True)):
        if cell.cell_type != "code":
            continue
        before, after = _shown(cell), _shown(done)
        if len(before) != len(after):
            found.append(
                f"cell {i}: {len(before)} outputs are stored, a fresh run has {len(after)}"
            )
            continue
        for one, other in zip(before, after, strict=True):
            if not alike(one, other, tolerance=tolerance):
                found.append(f"cell {i}: stored is {one[:300]!r}, fresh {other[:300]!r}")
    return found


def _shown(cell: Any) -> list[str]:
    """Return the text of every output, of a picture that it is one; what is printed is one text."""
    texts: list[str] = []
    printed = "".join(o.text for o in cell.outputs if o.output_type == "stream")
    if printed:
        texts.append(printed)  # how it was cut into pieces depends on the time between them
    for output in cell.outputs:
        if output.output_type == "stream":
            continue
        if "image/png" in output.get("data", {}):
            texts.append("a picture")
        else:
            texts.append(output.get("data", {}).get("text/plain", output.output_type))
    return texts


def alike(one: str, other: str, *, tolerance: float) -> bool:
    """Return whether two texts have the same words, and numbers within a relative tolerance."""
    texts = [_ADDRESS.sub("", text) for text in (one, other)]
    words = [_NUMBER.sub("#", text).split() for text in texts]
    numbers = [[_value(n) for n in _NUMBER.findall(text)] for text in texts]
    return words[0] == words[1] and all(
        math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-9)
        for a, b in zip(numbers[0], numbers[1], strict=True)
    )


def _value(number: str) -> float:
    return float(number.replace(",", "").replace("_", ""))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, default=sorted(FOLDER.glob("*.ipynb")))
    for name in VARIABLES:
        os.environ.pop(name, None)
    for path in parser.parse_args(arguments).paths:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(stored(path, execute(path, Path(folder))), path)
        print(path)


if __name__ == "__main__":
    main()
