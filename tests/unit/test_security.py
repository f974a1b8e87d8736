"""What our code never does: unpickle what others wrote, run text as code or as a shell command. Read off the source."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path
    for package in ("orchestrator", "workloads", "analysis", "sweeps", "benchmarks")
    for path in (ROOT / package).rglob("*.py")
)
UNPICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
RUN_TEXT = {"eval", "exec", "os.system", "os.popen", "subprocess.getoutput", "pandas.eval"}
UNSAFE_YAML = {"load", "load_all", "unsafe_load", "unsafe_load_all", "full_load", "full_load_all"}


def name_of(function):
    """Return `a.b.c` of a called expression; only the last parts where it starts with a call."""
    parts = []
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    if isinstance(function, ast.Name):
        parts.append(function.id)
    return ".".join(reversed(parts))


def value_of(call, keyword):
    """Return the literal that a keyword is given; None if it is not given; `?` if it is computed."""
    for given in call.keywords:
        if given.arg == keyword:
            return given.value.value if isinstance(given.value, ast.Constant) else "?"
    return None


def offences(source):
    """Return the lines of a source that may run what somebody else wrote."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, a.name) for a in node.names if a.name in UNPICKLERS]
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            if node.module in UNPICKLERS and not names <= {"Unpickler", "UnpicklingError"}:
                found.append((node.lineno, node.module))
        elif isinstance(node, ast.ClassDef):
            # Which decides itself what may be named.
            decides = any(getattr(child, "name", "") == "find_class" for child in node.body)
            if not decides and "Unpickler" in map(name_of, node.bases):
                found.append((node.lineno, node.name))
        elif isinstance(node, ast.Call):
            name = name_of(node.func)
            unsafe = (
                name in RUN_TEXT
                or (name == "torch.load" and value_of(node, "weights_only") is not True)
                or value_of(node, "allow_pickle") not in (None, False)
                or value_of(node, "shell") not in (None, False)
                or (name.startswith("yaml.") and name[5:] in UNSAFE_YAML)
                or name.endswith("read_pickle")
                or name == "Unpickler"
            )
            if unsafe:
                found.append((node.lineno, name))
    return found


def test_no_file_runs_what_somebody_else_wrote():
    assert len(FILES) > 150
    assert {
        str(path.relative_to(ROOT)): o for path in FILES if (o := offences(path.read_text()))
    } == {}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "Unpickler(file).load()",
        "class Any(Unpickler):\n    pass",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=flag)",
        "np.load(path, allow_pickle=True)",
        "subprocess.run(f'ls {name}', shell=True)",
        "os.system(command)",
        "eval(text)",
        "yaml.load(text)",
        "yaml.unsafe_load(text)",
        "pd.read_pickle(path)",
    ],
)
def test_each_offence_would_be_seen(line):
    assert offences(line)
