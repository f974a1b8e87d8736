"""Commands where an extra is not installed."""

import subprocess
import sys

import pytest

MEMSCALE = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None
from orchestrator import cli
cli.main()
"""


@pytest.mark.parametrize(
    ("words", "hidden", "extra"),
    [
        ("report quickstart", "pandas", "analysis"),
        ("fit quickstart", "pandas", "analysis"),
        ("next quickstart", "pandas", "analysis"),
        ("report quickstart --tracking-uri http://127.0.0.1:9", "mlflow", "mlflow"),
        ("data prepare text.txt --tokenizer bpe:300 --out tokens", "tokenizers", "torch"),
        ("data prepare text.txt --tokenizer bpe:300 --out tokens", "torch,tokenizers", "torch"),
    ],
)
def test_a_missing_package_is_a_sentence_with_its_extra(tmp_path, words, hidden, extra):
    (tmp_path / "text.txt").write_text("one two\n")
    (tmp_path / "runs" / "quickstart" / "trials").mkdir(parents=True)

    ended = subprocess.run(
        [sys.executable, "-c", MEMSCALE, hidden, *words.split()],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    name = hidden.split(",")[-1]
    assert "Traceback" not in ended.stderr
    assert ended.stderr.splitlines()[-1] == (
        f"the Python package {name!r} is not installed; pip install 'memscale[{extra}]'"
    )
    assert ended.returncode == 2
