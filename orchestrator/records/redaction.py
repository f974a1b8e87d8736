"""Redaction: URIs and messages without the passwords in them."""

import re

USER_AND_PASSWORD = re.compile(r"(?<=://)[^:/\n]*(?::.*)?@")
"""What stands before the host of a URI, to the last @ of the line: SQLAlchemy takes passwords with
spaces and slashes. A path with an @ has no colon before its first slash."""
_QUERY = re.compile(r"(?i)((?:user|uid|pwd|passwd|password|token)(?:=|%3D))[^&\s]+")


def without_password(text: str) -> str:
    """Return a URI, or a message that holds one, without user, password and tokens."""
    return _QUERY.sub(r"\1***", USER_AND_PASSWORD.sub("", text))
