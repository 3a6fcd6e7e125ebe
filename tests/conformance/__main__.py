"""`python -m tests.conformance [--reasons] FILE...`: run files of decision cases through the product.

One line for each failed case (id, expected, got), then `N passed, N failed` alone on a line. Exit status 0
when all pass, 1 when one fails, 2 when a file cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from autopilot.core.model.errors import InputError
from tests.conformance.cases import read_file
from tests.conformance.judge import judge


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the files that the command line names; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="cases, format gpu-decision-conformance/1")
    parser.add_argument("--reasons", action="store_true", help="show where a gang waits for another reason than stated")
    given = parser.parse_args(arguments)
    try:
        entries = [entry for path in given.files for entry in read_file(path)]
    except InputError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    failed = 0
    for entry in entries:
        judgement = judge(entry)
        if judgement.failures:
            failed += 1
            print(judgement.line)  # noqa: T201
        if given.reasons:
            for expected, got in judgement.reasons:
                print(f"{judgement.id}: (reason) expected {expected}; got {got}")  # noqa: T201
    print(f"{len(entries) - failed} passed, {failed} failed")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
