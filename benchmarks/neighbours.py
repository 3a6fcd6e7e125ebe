"""Work slowed by a neighbour, and gangs held up by a member: what the detectors find on generated days.

Each part has a table of its own. Days are drawn by seed, with the truth kept apart; constants of the detectors were set
on seeds 1 to 20, the table is of seeds 101 to 120.

    python -m benchmarks neighbours [--part NAME] [--json OUT]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import interference_figures, interference_speed, straggler_figures
from benchmarks.kit import MISSED, options, table, write_json

Part = Callable[[bool], tuple[list[tuple[str, ...]], dict[str, Any]]]
PARTS: dict[str, Part] = {
    "interference": interference_figures.interference,
    "tick": interference_speed.measure,
    "placebo": interference_figures.on_real_latencies,
    "stragglers": straggler_figures.measure,
}
"""A part gives its lines (the heading first) and its figures; the argument asks for less of the same."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables of all parts, or of one. The exit code is 1 where a figure misses its goal."""
    given = options(__doc__, arguments, part="")
    if given.part and given.part not in PARTS:
        raise SystemExit(f"--part: {given.part!r} is not one of {', '.join(PARTS)}")
    figures, missed = dict[str, Any](), False
    for name, measure in PARTS.items():
        if given.part in ("", name):
            print(f"-- {name}")
            (heading, *lines), figures[name] = measure(given.quick)
            table(heading, lines)
            missed |= any(MISSED in cell for line in lines for cell in line)
    write_json(given.json, figures)
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
