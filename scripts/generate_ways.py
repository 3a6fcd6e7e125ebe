"""Write the table of signals by way in into docs/data-sources.md: `python scripts/generate_ways.py [--check]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from autopilot.core.intake.ways_in import SIGNALS, Way  # noqa: E402  # the checkout first, not an installed copy
from scripts.generated_page import cell, write_or_compare  # noqa: E402

PAGE = ROOT / "docs" / "data-sources.md"
BEGIN, END = "<!-- ways:begin -->", "<!-- ways:end -->"


def rows() -> list[str]:
    """The table in Markdown."""
    lines = [f"| signal | what it is | {' | '.join(Way)} | what needs it |", f"|---|---|{'---|' * len(Way)}---|"]
    for each in SIGNALS:
        cells = [", ".join(f"`{cell(name)}`" for name in each.cells.get(way, ())) or "-" for way in Way]
        actions = ", ".join(f"`{name}`" for name in dict.fromkeys(name for use in each.uses for name in use.actions))
        lines.append(f"| `{each.name}` | {each.words} | {' | '.join(cells)} | {actions or '-'} |")
    return lines


def render() -> str:
    """The page with the present table."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return "\n".join([head + BEGIN, *rows(), END + rest.partition(END)[2]])


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or compare it."""
    return write_or_compare(render, PAGE, "the table of signals and ways in", "generate_ways.py", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
