"""Digests of code: comments and docstrings leave them, anything else changes them."""

import pytest

from orchestrator.records.code_digest import code_digest

CODE = '"""A model."""\n\nWIDTH = 4  # wide\n'


@pytest.fixture
def digest(tmp_path):
    def of(code: str) -> str | None:
        file = tmp_path / "dense.py"
        file.write_text(code)
        return code_digest(file)

    return of


def test_words_about_the_code_leave_its_digest(digest):
    assert digest(CODE) == digest("WIDTH = 4\n") == digest(CODE.replace("A model", "The model"))


def test_other_code_has_another_digest(digest):
    assert digest(CODE) != digest(CODE.replace("4", "8"))


def test_what_cannot_be_read_has_none(digest, tmp_path):
    assert digest("def (") is None
    assert code_digest(tmp_path / "none.py") is None
