"""Redaction: URIs and messages without the passwords in them."""

import re

USER_AND_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")
"""What stands before the host of a URI that is part of a text."""
_TO_THE_LAST_AT = re.compile(r"(?<=://)[^:/\n]*(?::.*)?@")
"""The same of a URI alone: SQLAlchemy takes passwords with spaces, slashes and @. A path with an @
has no colon before its first slash."""
_QUERY = re.compile(r"(?i)(?:(?<!\w)|(?<=%3B))((?:pwd|passwd|password|token)(?:=|%3D))[^&\s]+")


def without_password(uri: str) -> str:
    """Return a URI, or a word that ends in one, without user, password and tokens."""
    return _QUERY.sub(r"\1***", _TO_THE_LAST_AT.sub("", uri))


def message_without_password(message: str, *uris: str) -> str:
    """Return a message without the passwords of these URIs, and of others as far as they show."""
    for uri in filter(None, uris):
        message = message.replace(uri, without_password(uri))
    return _QUERY.sub(r"\1***", USER_AND_PASSWORD.sub("", message))
