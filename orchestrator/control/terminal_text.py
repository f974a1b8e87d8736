"""Text from trials and other machines, made safe for a terminal."""

import re


def printable(text: str) -> str:
    r"""Return the text with escapes and other control characters written out, as `\x1b`.

    A reason may be the message of any exception, and a terminal obeys what it is sent: it may hide
    lines, rename its window or answer into the shell. White space becomes spaces.
    """
    if text.isprintable():
        return text
    return "".join(
        one
        if one.isprintable()
        else " "
        if one.isspace()
        else one.encode("unicode_escape").decode()
        for one in text
    )


def printable_lines(text: str) -> str:
    """Return the text of a log likewise, with its lines and tabs.

    A carriage return ends a line: it would let what follows overwrite what is there.
    """
    lines = re.split("\r\n|\r|\n", text)
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in lines)
