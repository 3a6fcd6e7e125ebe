"""The exceptions of the product.

    AutopilotError
    ├── InputError        the user gave something unusable; one message, exit code 2
    └── InvariantError    our own code is broken; stops the tick, which fails safe

Expected bad news (a refused proposal, a failed effect, a missing sample) is a value
in `records`, never an exception.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_NAME = 60
"""Letters of a word that is compared with known names; a longer one is no misspelt name."""


class AutopilotError(Exception):
    """Base of every error raised by this product on purpose."""


class InputError(AutopilotError):
    """Something given by a person cannot be used.

    The message names the object (file, row, column or field), the value and the mend.
    The command line prints it without a traceback and exits with code 2.
    """


class InvariantError(AutopilotError):
    """A statement that our own code guarantees does not hold."""


def shown(value: object) -> str:
    """A value as Python writes it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 3]}..."


def nearest(word: object, known: Iterable[str], least_ratio: float = 0.6) -> str:
    """`did you mean X?` for the known name that is nearest to `word` in any case, or an empty text."""
    text = str(word)
    by_folded = {name.casefold(): name for name in known}
    short = len(text) <= LONGEST_NAME
    near = get_close_matches(text.casefold(), by_folded, n=1, cutoff=least_ratio) if short else []
    return f"did you mean {by_folded[near[0]]}?" if near and by_folded[near[0]] != text else ""


def unknown_name(word: object, known: Iterable[str], most: int = 20) -> str:
    """What helps against a name that nothing bears: the nearest one, and those that there are."""
    names = list(known)
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    there = f"there are {', '.join(names[:most])}{more}" if names else "there are none"
    return " ".join(part for part in (nearest(word, names), there) if part)


def invariant(holds: bool, message: str) -> None:
    """Raise `InvariantError` with `message` unless `holds`."""
    if not holds:
        raise InvariantError(message)
