"""Text of a program, of its modules and files, as it can be shown."""

from __future__ import annotations


def visible(text: str) -> str:
    """Control characters, which a terminal obeys, lone surrogates and others that XML has no place for, written as escapes."""
    return "".join(
        char
        if char == "\n" or (char.isprintable() and not 0xD800 <= ord(char) <= 0xDFFF)
        else char.encode("unicode_escape", "surrogatepass").decode("ascii")
        for char in text
    )
