"""Times the kernels of memory layers, each table by a script of its own beside this one.

    python benchmarks/memory_kernels.py                              # weighted_bag: about 40 s on an H200
    python benchmarks/memory_kernels.py --tokens 8192                # with an option of that script
    python benchmarks/memory_kernels.py --all                        # every table, one after another
    python benchmarks/memory_kernels.py hash_bag product_key_topk    # some of them
    python benchmarks/memory_kernels.py table_optimizer --ids zipf   # one of them with its options
    python benchmarks/memory_kernels.py table_optimizer --help       # which are these

Tables:

    weighted_bag       weighted sums of rows and their gradients
    product_key_topk   selection of rows by product keys
    hash_bag           rows selected by signs, summed
    table_optimizer    gradient and optimizer step of a table
    host_tables        a table in host memory beside one on the GPU
    cpu_bag            the weighted bag on a CPU; needs no GPU
"""

import subprocess
import sys
from itertools import takewhile
from pathlib import Path

TABLES = (
    "weighted_bag", "product_key_topk", "hash_bag", "table_optimizer", "host_tables", "cpu_bag",
)  # fmt: skip


def main(words: list[str]) -> int:
    """Run the scripts that are named, in processes of their own; return 1 if one of them failed."""
    names = list(takewhile(lambda word: not word.startswith("-"), words))
    options = words[len(names) :]
    if not names and options in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    if not names and options == ["--all"]:
        names, options = list(TABLES), []
    unknown = [name for name in names if name not in TABLES]
    if unknown:
        raise SystemExit(f"no table {', '.join(unknown)}; there are {', '.join(TABLES)}")
    if len(names) > 1 and options:
        raise SystemExit(f"{' '.join(options)}: options belong to one table, got {len(names)}")
    failed = []
    for name in names or TABLES[:1]:
        print(f"== {name}", flush=True)
        script = Path(__file__).with_name(f"{name}.py")
        if subprocess.run([sys.executable, str(script), *options]).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
