"""What tests of training programs share."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def own_sigterm() -> Iterator[None]:
    """The handler of SIGTERM is as it was, afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
