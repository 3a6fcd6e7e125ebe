"""The shared part of the generators of files: write them, or state the differences."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def cell(text: str) -> str:
    """Text as it may stand in a table."""
    return text.replace("|", "\\|")


def write_or_compare(
    render: Callable[[], str], target: Path, source: str, script: str, arguments: Sequence[str] | None
) -> int:
    """Write what `render` gives, or compare it with the page; 0 done or equal, 1 if `--check` found a difference.

    `source`: the source of the page, in words; `script`: the name of the calling script.
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


def write_or_compare_files(
    files: Mapping[Path, str], script: str, arguments: Sequence[str] | None, there: Iterable[Path] = ()
) -> int:
    """Write files, or compare them with `--check`; 0 done or equal, 1 if one differs.

    `there`: the files of folders for these files alone; those outside `files` go. `script`: its name.
    """
    parser = argparse.ArgumentParser(description="write " + ", ".join(sorted({_shown(path.parent) for path in files})))
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 where a file differs")
    return settle_files(files, script, there, check=parser.parse_args(arguments).check)


def settle_files(files: Mapping[Path, str], script: str, there: Iterable[Path] = (), *, check: bool) -> int:
    """As `write_or_compare_files`, for scripts with options of their own."""
    differ = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    differ += [path for path in there if path not in files]
    for path in differ:
        if check:
            print(f"{_shown(path)} differs; run: python scripts/{script}", file=sys.stderr)
        elif path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path], encoding="utf-8")
            print(f"wrote {_shown(path)}")
        else:
            path.unlink()
    return int(check and bool(differ))


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
