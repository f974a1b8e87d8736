"""Redaction: URIs and messages without the passwords in them."""

import re


def without_password(text: str) -> str:
    """Return a URI, or a message that holds one, without user, password and tokens."""
    text = re.sub(r"://[^/@\s]+@", "://", text)
    return re.sub(r"(?i)((?:password|token)=)[^&\s]+", r"\1***", text)
