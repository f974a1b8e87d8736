"""No password is shown, whatever it stands in."""

import pytest

from orchestrator.records.redaction import without_password


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ada:pw@host:5432/db", "postgresql://host:5432/db"),
        ("http://ada:p%40w@host/x", "http://host/x"),
        ("sqlite:////home/a@b/mlflow.db", "sqlite:////home/a@b/mlflow.db"),
        (
            "cannot reach postgresql://ada:pw@host/db: refused",
            "cannot reach postgresql://host/db: refused",
        ),
        ("https://host/?token=abc&x=1", "https://host/?token=***&x=1"),
    ],
)
def test_no_password_is_shown(text, shown):
    assert without_password(text) == shown
