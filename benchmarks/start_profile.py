"""Sampling profiler of ranks from their fork to a little after their first step.

`benchmarks/start_times.py --profile` uses it. `install` puts a `sitecustomize` in the way of the fork
server, whose ranks then sample themselves: a thread looks every 5 ms where the main thread is, or
the thread of the backward pass while the main one waits for it. A sample counts the time since the
one before, so a call that keeps Python's lock counts whole. What its thread did not compute in that
time it waited, for what the kernel names: `ioctl` is the driver, `futex` a lock, `wait4` a process.
"""

import json
import linecache
import os
import resource
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

EVERY_S = 0.005
AFTER_S = 2.0
"""How long a rank is followed after its first step: warm-up steps and captures."""
AT_MOST_S = 90.0
_CALLS = {
    -1: "no call",
    0: "read",
    7: "poll",
    9: "mmap",
    16: "ioctl",
    23: "select",
    46: "sendmsg",
    47: "recvmsg",
}
_CALLS |= {61: "wait4", 72: "fcntl", 73: "flock", 202: "futex", 230: "sleep", 247: "waitid"}
# Where a stack is, by the innermost of its frames that a rule knows: part of the file, function.
_PLACES = (
    ("importlib._bootstrap", "", "imports"),
    ("triton/runtime/build.py", "", "C compiler"),
    ("triton_heuristics.py", "bench", "autotune"),
    ("triton_heuristics.py", "autotune", "autotune"),
    ("triton/compiler/compiler.py", "_init_handles", "Triton load"),
    ("static_cuda_launcher.py", "load", "Triton load"),
    ("static_triton_launcher.py", "load", "Triton load"),
    ("triton/backends/nvidia/driver.py", "", "Triton load"),
    ("triton/compiler/", "", "Triton compile"),
    ("triton/backends/", "", "Triton compile"),
    ("triton_heuristics.py", "precompile", "Triton load"),
    ("triton_heuristics.py", "run", "kernels"),
    ("torch/cuda/", "", "CUDA context"),
    ("torch/_inductor/", "", "Inductor"),
    ("torch/_functorch/", "", "AOT"),
    ("torch/_dynamo/", "", "dynamo"),
    ("workloads/kernels/", "", "kernels"),
    ("workloads/training/optimizer/adamw.py", "", "optimizer"),
    ("workloads/training/evaluate.py", "", "evaluation"),
    ("workloads/layers/modules/init.py", "", "model"),
    ("workloads/sharding/materialise.py", "", "model"),
    ("workloads/data/", "", "data"),
    ("workloads/training/step/train_step.py", "", "step"),
)
PLACES = ("CUDA context", "imports", "data", "model", "dynamo", "AOT", "Inductor")
PLACES += ("Triton compile", "autotune", "C compiler", "Triton load", "cuBLAS", "attention")
PLACES += ("kernels", "optimizer", "step", "capture", "evaluation", "other")


def install(folder: Path) -> dict[str, str]:
    """Return the variables with which a fork server has its ranks write profiles to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'orchestrator.node.fork_server' in sys.orig_argv:\n"
        f"    sys.path.append({os.path.dirname(__file__)!r})\n"  # noqa: PTH120 -- of a string
        f"    import start_profile; start_profile.follow_forks({str(folder)!r})\n",
        encoding="utf-8",
    )
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


def follow_forks(folder: str) -> None:
    """Have every process that this one forks write a profile of its start."""
    os.register_at_fork(after_in_child=lambda: Sampler(Path(folder)).start())


class Sampler(threading.Thread):
    """Samples the process that it is started in."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="profile", daemon=True)
        self._file = folder / f"{os.getpid()}.json"
        self._found: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._used = resource.getrusage(resource.RUSAGE_SELF)
        self._until = time.perf_counter() + AT_MOST_S
        self._first_step: dict[str, float] | None = None
        self._note_first_step()

    def run(self) -> None:
        """Sample until a little after the first step, writing what is known now and then."""
        last, written, cpu = time.perf_counter(), 0.0, dict[int, float]()
        known = self._first_step
        while last < self._until:
            time.sleep(EVERY_S)
            now = time.perf_counter()
            thread, stack = self._busy_thread()
            clock = time.pthread_getcpuclockid(thread)
            computed = time.clock_gettime(clock)
            part = min(now - last, computed - cpu.get(thread, computed))
            waits = _CALLS.get(_system_call(~(clock >> 3)), "another")
            section = "before" if self._first_step is None else "after"
            entry = self._found[section, ";".join(stack), waits]
            entry[0] += now - last
            entry[1] += part
            cpu[thread], last = computed, now
            if now - written > 0.5 or self._first_step is not known:
                self._write()
                written, known = now, self._first_step
        self._write()

    def _busy_thread(self) -> tuple[int, list[str]]:
        """Return the main thread, or that of the backward pass, and its stack, innermost last."""
        frames = sys._current_frames()
        main = threading.main_thread().ident
        assert main is not None, "it runs"
        stack = [*_stack(frames[main])]
        if any("_engine_run_backward" in frame for frame in stack[-2:]):
            for thread, frame in frames.items():
                if thread not in (main, self.ident):
                    other = [*_stack(frame)]
                    if not any(name in other[-1] for name in ("threading.py", "selectors.py")):
                        return thread, stack + other
        return main, stack

    def _note_first_step(self) -> None:
        from orchestrator.node.start_times import StartTimes

        record = StartTimes.record

        def noted(times: StartTimes, phase: str) -> dict[str, float] | None:
            seconds = record(times, phase)
            if seconds is not None and self._first_step is None:
                self._first_step = seconds
                self._until = time.perf_counter() + AFTER_S
                self._used_at_first_step = resource.getrusage(resource.RUSAGE_SELF)
            return seconds

        StartTimes.record = noted  # type: ignore[method-assign]

    def _write(self) -> None:
        now = resource.getrusage(resource.RUSAGE_SELF)
        used = self._used_at_first_step if self._first_step is not None else now
        content = {
            "first_step": self._first_step,
            "user_s": used.ru_utime - self._used.ru_utime,
            "system_s": used.ru_stime - self._used.ru_stime,
            "minor_faults": used.ru_minflt - self._used.ru_minflt,
            "major_faults": used.ru_majflt - self._used.ru_majflt,
            "switches": used.ru_nvcsw - self._used.ru_nvcsw,
            "preempted": used.ru_nivcsw - self._used.ru_nivcsw,
            "samples": [[*key, *value] for key, value in self._found.items()],
        }
        aside = self._file.with_suffix(".new")
        aside.write_text(json.dumps(content), encoding="utf-8")
        aside.rename(self._file)


def _stack(frame: FrameType | None) -> Iterator[str]:
    """Yield `file:function` of the frames, outermost first; of compiled code the line too."""
    if frame is None:
        return
    yield from _stack(frame.f_back)
    file, name = frame.f_code.co_filename, frame.f_code.co_name
    short = "/".join(file.split("/")[-4:])
    if "/inductor/" in file and name == "call":
        line = linecache.getline(file, frame.f_lineno).strip().replace(";", ",")
        yield f"compiled/{name}:{line[:60]}"
    else:
        yield f"{short}:{name}:{frame.f_lineno}"


def _system_call(thread: int) -> int:
    """Return the number of the system call in which a thread is; -1: none, or nobody says."""
    try:
        first = Path(f"/proc/self/task/{thread}/syscall").read_text().split()[0]
    except (OSError, IndexError):
        return -1
    return int(first) if first.isdigit() else -1


def place(stack: str) -> str:
    """Return which of `PLACES` a collapsed stack is in."""
    frames = stack.split(";")
    if any("cuda_graph.py:_capture" in frame for frame in frames):
        return "capture"
    for frame in reversed(frames):
        if frame.startswith("compiled/"):
            if "extern_kernels" in frame:
                return "cuBLAS"
            return "attention" if "attention" in frame else "kernels"
        for file, function, found in _PLACES:
            if file in frame and f":{function}" in frame:
                return found
    return "other"


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the profiles of the ranks that took a step."""
    found = (json.loads(file.read_text()) for file in sorted(folder.glob("*.json")))
    return [profile for profile in found if profile["first_step"] is not None]


def tables(ways: dict[str, list[dict[str, Any]]], top: int = 10) -> None:
    """Print mean seconds of a rank by place, by what it waited for, and by innermost frames."""
    for section in ("before", "after"):
        print(f"\nSeconds of a rank {section} its first step: all, and what of it was computing\n")
        _print_means(ways, section, lambda stack, waits: place(stack), PLACES)
    print("\nSeconds of a rank before its first step in which it waited, by system call\n")
    _print_means(
        ways, "before", lambda stack, waits: waits, (*_CALLS.values(), "another"), wait=True
    )
    counts = ("user_s", "system_s", "minor_faults", "major_faults", "switches", "preempted")
    print("\n| way | ranks | " + " | ".join(counts) + " |\n|" + "---|" * (2 + len(counts)))
    for way, ranks in ways.items():
        cells = (
            f"{sum(rank[count] for rank in ranks) / max(1, len(ranks)):.1f}" for count in counts
        )
        print(f"| {way} | {len(ranks)} | " + " | ".join(cells) + " |")
    for way, ranks in ways.items():
        print(f"\n{way}: where most seconds went before the first step (wall, computing, waits)\n")
        leaves: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for section, stack, waits, wall, computed in (s for rank in ranks for s in rank["samples"]):
            if section == "before":
                entry = leaves[" < ".join(reversed(stack.split(";")[-6:])), waits]
                entry[0] += wall / len(ranks)
                entry[1] += computed / len(ranks)
        for (leaf, waits), (wall, computed) in sorted(leaves.items(), key=lambda i: -i[1][0])[:top]:
            print(f"{wall:7.3f} {computed:7.3f} {waits:8} {leaf[:240]}")
    sys.stdout.flush()


def _print_means(
    ways: dict[str, list[dict[str, Any]]],
    section: str,
    name: Any,
    names: tuple[str, ...],
    *,
    wait: bool = False,
) -> None:
    rows = {}
    for way, ranks in ways.items():
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for at, stack, waits, wall, computed in (s for rank in ranks for s in rank["samples"]):
            if at == section:
                entry = sums[name(stack, waits)]
                entry[0] += (wall - computed if wait else wall) / len(ranks)
                entry[1] += computed / len(ranks)
        rows[way] = sums
    shown = [n for n in names if any(sums[n][0] >= 0.01 for sums in rows.values())]
    print("| way | " + " | ".join(shown) + " | sum |\n|" + "---|" * (2 + len(shown)))
    for way, sums in rows.items():
        total = [sum(sums[n][i] for n in names) for i in (0, 1)]
        cells = [sums[n] for n in shown] + [total]
        text = (f"{a:.2f}" if wait else f"{a:.2f} ({b:.2f})" for a, b in cells)
        print(f"| {way} | " + " | ".join(text) + " |")
