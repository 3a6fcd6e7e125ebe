"""Signals by way in, and reported situations of schedulers and exporters.

The matrix is the table of `autopilot/core/intake/ways_in.py`; each filled cell has a test. The cases are those of
`../shared/field-reports`: its check.py plays each of them, some beside a real Prometheus, and judges the result.
Without that folder no case is counted. `--quick` plays one of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from autopilot.core.intake.ways_in import SIGNALS, Way
from benchmarks.kit import ROOT, data_folder, options, table, write_json

CASE_S = 600.0
"""Longest time of one case."""


def matrix() -> tuple[list[str], list[list[str]]]:
    """Heading and rows: each signal with its name by way in, "-" for a way without it."""
    rows = [[each.name, *(", ".join(each.cells.get(way, ("-",))) for way in Way)] for each in SIGNALS]
    return ["signal", *Way], rows


def filled() -> tuple[int, int]:
    """Filled cells, and all."""
    return sum(len(each.cells) for each in SIGNALS), len(SIGNALS) * len(Way)


def cases(folder: Path, *, quick: bool) -> dict[str, bool]:
    """True for each case of a folder with the right result."""
    found = {}
    for case in sorted(each.parent.name for each in folder.glob("*/case.yaml"))[: 1 if quick else None]:
        command, told = [sys.executable, str(folder / "check.py"), case], {**os.environ, "SRC": str(ROOT)}
        done = subprocess.run(command, cwd=ROOT, env=told, capture_output=True, timeout=CASE_S, check=False)
        found[case] = done.returncode == 0
        print(f"  {case}: {'right' if found[case] else 'WRONG'}", file=sys.stderr, flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the matrix and the number of right cases; 1 if any is wrong."""
    given = options(__doc__, arguments)
    heading, rows = matrix()
    table(heading, [[name, *("-" if cell == "-" else "read" for cell in cells)] for name, *cells in rows])
    have, cells = filled()
    print(f"{have} of {cells} cells are filled")
    folder = data_folder().parent / "field-reports"
    played = cases(folder, quick=given.quick) if folder.exists() else {}
    if played:
        wrong = "".join(f"; {case} is not" for case, right in played.items() if not right)
        print(f"{sum(played.values())} of {len(played)} field cases are right{wrong}")
    else:
        print(f"SKIPPED: the field cases: {folder} is absent")
    write_json(given.json, {"filled": have, "cells": cells, "right": sum(played.values()), "cases": len(played)})
    return int(not all(played.values()))


if __name__ == "__main__":
    raise SystemExit(main())
