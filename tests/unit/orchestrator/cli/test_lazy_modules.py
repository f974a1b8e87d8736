"""Modules that are loaded on first use."""

import importlib
import sys

from orchestrator.cli.lazy_modules import load_on_first_use


def test_a_module_is_loaded_once_something_of_it_is_asked_for(tmp_path, monkeypatch):
    package = tmp_path / "seldom_used"
    package.mkdir()
    (package / "__init__.py").touch()
    loaded = tmp_path / "loaded"
    (package / "part.py").write_text(
        f"import pathlib\npathlib.Path({str(loaded)!r}).touch()\nanswer = 42\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    load_on_first_use("seldom_used.part")

    try:
        from seldom_used import part

        assert not loaded.exists()
        assert part.answer == 42
        assert loaded.exists()
    finally:
        for name in ("seldom_used.part", "seldom_used"):
            sys.modules.pop(name, None)


def test_loaded_and_missing_modules_are_passed_over():
    decoder = importlib.import_module("json.decoder")

    load_on_first_use("json.decoder", "json.no_such_module", "no_such_package.part")

    assert sys.modules["json.decoder"] is decoder
    assert "json.no_such_module" not in sys.modules
