"""What the scripts share that write a page of docs/ from the code: write it, or say how it differs."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def cell(text: str) -> str:
    """Text as it may stand in a table."""
    return text.replace("|", "\\|")


def write_or_compare(
    render: Callable[[], str], target: Path, source: str, script: str, arguments: Sequence[str] | None
) -> int:
    """Write what `render` gives, or compare it with the page; 0 done or equal, 1 where `--check` found a difference.

    `source`: what the page is made from, in words; `script`: the name of the script that calls.
    """
    parser = argparse.ArgumentParser(description=f"write docs/{target.name} from {source}")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when the page differs")
    parser.add_argument("--target", type=Path, default=target, help="the page to write or compare")
    options = parser.parse_args(arguments)
    text = render()
    if options.check:
        return _compare(options.target, text, source, script)
    draft = options.target.with_suffix(".md.new")
    draft.write_text(text, encoding="utf-8")
    draft.replace(options.target)
    print(f"wrote {options.target.name}")
    return 0


def _compare(target: Path, text: str, source: str, script: str) -> int:
    committed = target.read_text(encoding="utf-8") if target.exists() else ""
    if committed == text:
        print(f"{target.name} equals {source}")
        return 0
    changes = difflib.unified_diff(
        committed.splitlines(), text.splitlines(), "committed", f"from {source}", lineterm=""
    )
    print("\n".join(changes))
    print(f"{target.name} differs; run: python scripts/{script}", file=sys.stderr)
    return 1
