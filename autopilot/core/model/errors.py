"""The exceptions of the product.

    AutopilotError
    ├── InputError        unusable input of the user; one message, exit code 2
    └── InvariantError    a bug in this product; ends the tick before anything acts

An expected failure (a refused proposal, a failed effect, a missing sample) is a value
in `records`, never an exception.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_NAME = 60
"""Most characters of a word in a comparison with known names; a longer one cannot be a misspelt name."""


class AutopilotError(Exception):
    """Base of all errors raised on purpose by this product."""


class InputError(AutopilotError):
    """Input of a person is unusable.

    The message names the object (file, row, column or field), the value and the fix.
    The command line prints it without a traceback and exits with code 2.
    """


class InvariantError(AutopilotError):
    """A guarantee of the code is broken."""


def shown(value: object) -> str:
    """The `repr` of a value, cut to `LONGEST_NAME` characters."""
    text = repr(value)
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 3]}..."


def nearest(word: object, known: Iterable[str], least_ratio: float = 0.6) -> str:
    """`did you mean X?` for the known name nearest to `word`, ignoring case; "" if none is near."""
    text = str(word)
    by_folded = {name.casefold(): name for name in known}
    short = len(text) <= LONGEST_NAME
    near = get_close_matches(text.casefold(), by_folded, n=1, cutoff=least_ratio) if short else []
    return f"did you mean {by_folded[near[0]]}?" if near and by_folded[near[0]] != text else ""


def unknown_name(word: object, known: Iterable[str], most: int = 20) -> str:
    """A hint for an unknown name: the nearest known name, and a list of at most `most` known names."""
    names = list(known)
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    there = f"there are {', '.join(names[:most])}{more}" if names else "there are none"
    return " ".join(part for part in (nearest(word, names), there) if part)


def invariant(holds: bool, message: str) -> None:
    """Raise `InvariantError` with `message` unless `holds`."""
    if not holds:
        raise InvariantError(message)
