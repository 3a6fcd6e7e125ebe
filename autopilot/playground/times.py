"""Times as the API writes them, from seconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime


def stamp(at_s: float) -> str:
    """A `Time`: whole seconds, rounded down."""
    return datetime.fromtimestamp(int(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
