"""Write the table of reason codes into docs/output.md, from autopilot/core/model/records.py and
autopilot/explain/proposals.py.

python scripts/generate_code_reference.py           write it
python scripts/generate_code_reference.py --check   compare only; exit 1 on a difference
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from autopilot.core.model.records import Code  # noqa: E402
from autopilot.explain.cases import Amount  # noqa: E402
from autopilot.explain.proposals import REASONS  # noqa: E402  # the checkout first, not an installed copy
from autopilot.report.advice import FIELD_OF, MODE_CODES  # noqa: E402
from scripts.generated_page import cell, write_or_compare  # noqa: E402

TARGET = ROOT / "docs" / "output.md"
BEGIN, END = "<!-- codes:begin -->", "<!-- codes:end -->"


def table() -> str:
    """One row a code: its words, with V for the value and T for the threshold, and the setting of the threshold."""
    rows = ["| code | says | set by |", "|---|---|---|"]
    for code in Code:
        field = "modes.ACTION" if code in MODE_CODES else FIELD_OF.get(code, "")
        says = REASONS[code].format(value=Amount("V", math.nan), threshold=Amount("T", math.nan))
        rows.append(f"| `{code.value}` | {cell(says)} | {f'`{field}`' if field else ''} |")
    return "\n".join(rows)


def render() -> str:
    """The page with its table made anew."""
    head, _, rest = TARGET.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


def main(arguments: list[str] | None = None) -> int:
    """Write or compare."""
    return write_or_compare(render, TARGET, "the reason codes", "generate_code_reference.py", arguments)


if __name__ == "__main__":
    sys.exit(main())
