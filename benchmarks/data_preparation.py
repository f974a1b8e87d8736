"""Rate of `memscale data prepare` beside the batch rate of the `tokenizers` library.

python benchmarks/data_preparation.py corpus-*.jsonl.gz [--tokenizer tokenizer.json] [--repeats 3]

Ours is end to end: start of the processes, reading, decompressing, parsing, tokenising, writing,
hashing. The library's is one call of `encode_batch_fast` with all cores over texts that lie in
memory, and nothing else. Both run in turns; the table has the best of each. On a busy machine compare
CPU seconds. Memory is the largest sum over all processes, and the corpus is prepared once more as
three copies to see that it does not grow.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from workloads.data.preparation.encoder_pool import usable_cores
from workloads.data.readers.documents import documents, expand
from workloads.data.readers.problems import Problems
from workloads.data.sources.tokens import Config
from workloads.data.tokenizer import load, train


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        measure(args.sources, args.tokenizer, Path(scratch), args.repeats)


def measure(sources: list[str], tokenizer: Path | None, scratch: Path, repeats: int) -> None:
    texts = list(documents(expand(sources), text_field="text", problems=Problems()))
    n_bytes = sum(len(text.encode()) for text in texts)
    if tokenizer is None:
        tokenizer = scratch / "tokenizer.json"
        train(texts[:5_000], vocab_size=16_384).save(tokenizer)
    ours, theirs = [], []
    model = load(tokenizer, vocab_size=None).model._model
    for repeat in range(repeats):
        out = scratch / f"out{repeat}"
        ours.append(prepared(sources, tokenizer, out))
        began, cpu = time.perf_counter(), time.process_time()
        model.encode_batch_fast(texts, add_special_tokens=False)
        theirs.append((time.perf_counter() - began, time.process_time() - cpu))
        print(
            f"turn {repeat + 1}: ours {ours[-1][0]:.1f} s, library {theirs[-1][0]:.1f} s",
            flush=True,
        )
    memory = prepared([*sources, *sources, *sources], tokenizer, scratch / "thrice")[2]
    n_tokens = Config(path=str(out)).tokens_per_epoch()
    print(f"\n{n_bytes / 1e6:.1f} MB of text, {len(texts):,} documents, {usable_cores()} cores\n")
    print("| | seconds | MB of text / s | tokens / s | CPU seconds |")
    print("|---|---|---|---|---|")
    for name, turns in (("library, in memory", theirs), ("data prepare, end to end", ours)):
        seconds, cpu = min(turn[0] for turn in turns), min(turn[1] for turn in turns)
        rates = f"{n_bytes / 1e6 / seconds:.2f} | {n_tokens / seconds:,.0f}"
        print(f"| {name} | {seconds:.1f} | {rates} | {cpu:.1f} |")
    print(
        f"\nmemory of all processes {ours[-1][2] / 2**20:.0f} MiB, with three times the text {memory / 2**20:.0f} MiB"
    )
    loader(out)


def prepared(sources: list[str], tokenizer: Path, out: Path) -> tuple[float, float, int]:
    """Return seconds, CPU seconds and the most bytes that all processes held together."""
    began, cpu, most = time.perf_counter(), os.times(), 0
    command = [sys.executable, "-m", "orchestrator.cli", "data", "prepare", *sources]
    process = subprocess.Popen(
        [*command, "--tokenizer", str(tokenizer), "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    root = psutil.Process(process.pid)
    while process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            family = (root, *root.children(recursive=True))
            most = max(most, sum(process.memory_full_info().pss for process in family))
        time.sleep(0.2)
    assert process.returncode == 0, "run the command itself to see why"
    after = os.times()
    used = after.children_user + after.children_system - cpu.children_user - cpu.children_system
    return time.perf_counter() - began, used, most


def loader(out: Path, *, sequences: int = 64, seq_len: int = 1024, batches: int = 50) -> None:
    corpus = Config(path=(str(out), str(out)), weights=(3.0, 1.0)).prepare(out)
    indices = np.arange(sequences)
    began = time.perf_counter()
    for batch in range(batches):
        corpus.windows(indices + batch * sequences, seq_len=seq_len, seed=0)
    rate = batches * sequences * seq_len / (time.perf_counter() - began)
    print(
        f"loader, a mixture of two, {sequences} x {seq_len}: {rate / 1e6:.1f} M tokens/s on one core"
    )


if __name__ == "__main__":
    main()
