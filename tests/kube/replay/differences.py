"""The steps that the server is known not to reproduce, with the reason of each: `differences.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path

FILE = Path(__file__).parent / "differences.toml"
COUNTED = ("02", "03", "04", "05", "06", "07", "08", "10", "11", "12", "14", "15", *map(str, range(20, 32)), "33")
HELD = ("02", "03", "04", "05", "06", "07", "08", "10", "11", "12", "14", "15", "33")
"""Topics of which every step is reproduced or listed; the others are measured."""
LEAST_RATIO = 0.75  # of the steps of the topics that are measured are reproduced
MOST_RATIO = 0.10  # of the steps of a topic that is held may be listed


def listed() -> dict[tuple[str, str], str]:
    """Reason by topic and step."""
    entries = tomllib.loads(FILE.read_text(encoding="utf-8")).get("step", [])
    return {(each["topic"], each["name"]): each["reason"] for each in entries}
