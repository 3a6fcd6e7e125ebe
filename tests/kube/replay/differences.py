"""The steps that the server is known not to reproduce, with the reason of each: `differences.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path

FILE = Path(__file__).parent / "differences.toml"
COUNTED = (
    "02", "03", "04", "05", "06", "07", "08", "10", "11", "12", "14", "15", *map(str, range(20, 32)), "33", "35", "35b",
    "35c", "36", "37", "38", "38b", "39", "39b", "40", "41",
)  # fmt: skip
MOST_RATIO = 0.10  # of all counted steps may be listed


def listed() -> dict[tuple[str, str], str]:
    """Reason by topic and step."""
    entries = tomllib.loads(FILE.read_text(encoding="utf-8")).get("step", [])
    return {(each["topic"], each["name"]): each["reason"] for each in entries}
