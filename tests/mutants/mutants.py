"""Mutation testing: put each fault of mutants.toml into a copy, and name the test that falls.

    python tests/mutants/mutants.py [--only REGEX] [--workers N] [--check]

Exit status 1 if a fault is not noticed, its text does not fit the code, or the tests fail without
it. Half an hour for all of them on two cores.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")
TIMEOUT_S = 300
QUICK = "not integration and not long and not slow and not gpu and not browser"
LONG = QUICK.replace("not long", "long")
_TICKS = count(1)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A fault: `old` becomes `new` in `file`, and one of `tests` must fail.

    `long`: only tests of that mark notice it.
    """

    name: str
    fault: str
    file: str
    old: str
    new: str
    tests: list[str]
    long: bool = False

    def problem(self, root: Path = ROOT) -> str | None:
        """Return what does not fit the tree, None if all does."""
        path = root / self.file
        n_found = path.read_text(encoding="utf-8").count(self.old) if path.exists() else 0
        if n_found != 1:
            return f"{self.file} holds `old` {n_found} times instead of once"
        absent = [test for test in self.tests if not (root / test).exists()]
        return f"no such tests: {', '.join(absent)}" if absent else None


def mutants() -> list[Mutant]:
    """Return all faults of the list."""
    return [Mutant(**fields) for fields in tomllib.loads(LIST.read_text("utf-8"))["mutant"]]


def verdict(mutant: Mutant, copy: Path) -> tuple[bool, str]:
    """Return whether a fault is noticed in a copy of the tree, and by which test."""
    path = copy / mutant.file
    source = path.read_text(encoding="utf-8")
    try:
        _write(path, source.replace(mutant.old, mutant.new))
        failed, output = run_tests(mutant.tests, copy, long=mutant.long)
    finally:
        _write(path, source)
    named = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return failed, named[1] if named else output.strip().rpartition("\n")[2]


def run_tests(tests: list[str], copy: Path, *, long: bool = False) -> tuple[bool, str]:
    """Return whether a test fails, or they do not end in time, and what pytest prints."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    # The installed package is the tree outside of the copy; an earlier path wins.
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [*command, "-m", LONG if long else QUICK, *tests],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S * (3 if long else 1) * len(tests),
        )
    except subprocess.TimeoutExpired:
        return True, "they do not end"
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(f"pytest: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.returncode != 0, done.stdout


def _write(path: Path, source: str) -> None:
    """Write a module with a time of its own, by which Python knows that its byte code is old."""
    path.write_text(source, encoding="utf-8")
    seconds = path.stat().st_mtime + 10 * next(_TICKS)
    os.utime(path, (seconds, seconds))


def _copy_tree(into: Path) -> Path:
    files = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(files, cwd=ROOT, capture_output=True, check=True)
    archive = ["tar", "--null", "--files-from=-", "--ignore-failed-read", "-cf", "-"]
    packed = subprocess.run(archive, cwd=ROOT, input=listed.stdout, capture_output=True, check=True)
    into.mkdir()
    subprocess.run(["tar", "-xf", "-"], cwd=into, input=packed.stdout, check=True)
    return into


def main() -> int:
    """Try all faults that were asked for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="regular expression of names")
    parser.add_argument("--workers", type=int, default=2, help="copies that are tried together")
    parser.add_argument("--check", action="store_true", help="only see whether the list fits")
    options = parser.parse_args()
    chosen = [mutant for mutant in mutants() if re.match(options.only, mutant.name)]
    unfit = {mutant.name: why for mutant in chosen if (why := mutant.problem())}
    for name, why in unfit.items():
        print(f"{name}: {why}; bring its entry up to date", flush=True)
    if options.check:
        return bool(unfit)
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(options.workers):
            copies.put(_copy_tree(Path(scratch, str(number))))

        def tried(mutant: Mutant) -> bool:
            copy = copies.get()
            try:
                noticed, by = verdict(mutant, copy)
            finally:
                copies.put(copy)
            word = f"noticed by {by}" if noticed else f"NOT NOTICED ({mutant.fault})"
            print(f"{mutant.name}: {word}", flush=True)
            return noticed

        fit = [mutant for mutant in chosen if mutant.name not in unfit]
        copy = copies.get()
        # Tests that fail anyway would notice everything.
        for long in sorted({mutant.long for mutant in fit}):
            tests = {test for mutant in fit if mutant.long == long for test in mutant.tests}
            failed, output = run_tests(sorted(tests), copy, long=long)
            if failed:
                print(output, "the tests fail without any fault", sep="\n")
                return 1
        copies.put(copy)
        with ThreadPoolExecutor(options.workers) as pool:
            noticed = sum(pool.map(tried, fit))
    print(f"{noticed} of {len(chosen)} faults noticed")
    return noticed < len(chosen)


if __name__ == "__main__":
    sys.exit(main())
