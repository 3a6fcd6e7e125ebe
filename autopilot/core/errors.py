"""The exceptions of the product.

    AutopilotError
    ├── InputError        the user gave something unusable; one message, exit code 2
    └── InvariantError    our own code is broken; stops the tick, which fails safe

Expected bad news (a refused proposal, a failed effect, a missing sample) is a value
in `records`, never an exception.
"""

from __future__ import annotations


class AutopilotError(Exception):
    """Base of every error raised by this product on purpose."""


class InputError(AutopilotError):
    """Something given by a person cannot be used.

    The message names the object (file, row, column or field), the value and the mend.
    The command line prints it without a traceback and exits with code 2.
    """


class InvariantError(AutopilotError):
    """A statement that our own code guarantees does not hold."""


def invariant(holds: bool, message: str) -> None:
    """Raise `InvariantError` with `message` unless `holds`."""
    if not holds:
        raise InvariantError(message)
