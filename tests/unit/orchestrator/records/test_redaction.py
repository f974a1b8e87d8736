"""No password is shown, whatever it stands in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records import provenance
from orchestrator.records.redaction import message_without_password, without_password


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ada:pw@host:5432/db", "postgresql://host:5432/db"),
        ("http://ada:p%40w@host/x", "http://host/x"),
        ("sqlite:////home/a@b/mlflow.db", "sqlite:////home/a@b/mlflow.db"),
        ("postgresql://me:ge/he im@host:9/db", "postgresql://host:9/db"),
        ("postgresql://me:ge@heim@host:9/db", "postgresql://host:9/db"),
        ("http://host/team@home", "http://host/team@home"),
        ("https://host/?token=abc&x=1", "https://host/?token=***&x=1"),
        ("mysql://host/db?user=ada&pwd=ab&x=1", "mysql://host/db?user=ada&pwd=***&x=1"),
        (
            "mssql://?odbc_connect=UID%3Dada%3BPWD%3Dab",
            "mssql://?odbc_connect=UID%3Dada%3BPWD%3D***",
        ),
    ],
)
def test_no_password_is_shown(text, shown):
    assert without_password(text) == shown


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("no answer from postgresql://ada:pw@host/db: no", "no answer from postgresql://host/db: no"),
        ("http://host:5000/api failed: user ann@corp.org", "http://host:5000/api failed: user ann@corp.org"),
        ("guid=5 and token=abc", "guid=5 and token=***"),
    ],
)  # fmt: skip
def test_of_a_message_the_rest_stays(message, shown):
    assert message_without_password(message) == shown


LINES = st.characters(codec="utf-8", exclude_categories=("Cc", "Zl", "Zp"))
USERS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc",), exclude_characters=":/"))


@given(user=USERS, password=st.text(LINES))
def test_no_part_of_a_password_is_left(user, password):
    uri = f"postgresql+psycopg2://{user}:{password}@host:9/db"

    assert without_password(uri) == "postgresql+psycopg2://host:9/db"
    assert provenance.redacted_argv([uri]) == ["postgresql+psycopg2://host:9/db"]
    message = message_without_password(f"at {uri}: ann@corp.org may not", uri)
    assert message == "at postgresql+psycopg2://host:9/db: ann@corp.org may not"


QUERY = st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters="&@")


@given(
    name=st.sampled_from(["pwd", "passwd", "password", "token"]),
    password=st.text(QUERY, min_size=1),
)
def test_no_part_of_a_password_in_a_query_is_left(name, password):
    uri = f"mysql://host/db?{name}={password}&x=1"

    assert without_password(uri) == f"mysql://host/db?{name}=***&x=1"
    assert provenance.redacted_argv([f"--tracking-uri={uri}"]) == [
        f"--tracking-uri=mysql://host/db?{name}=***"
    ]
