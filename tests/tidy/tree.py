"""The files of the checkout, as the style rules read them."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("autopilot", "collectors", "models", "actuators", "simulator")
PURE = ("autopilot/core", "models")
NOT_OURS = {".git", ".venv", ".hypothesis", "__pycache__", "build", "dist", "node_modules", "out"}


@functools.cache
def files() -> tuple[Path, ...]:
    """Every file that git knows or would add; without git (a plain copy), all but caches and built files."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0 and (ROOT / ".git").exists():
        found = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    else:
        found = [p for p in ROOT.rglob("*") if not _is_built(p.relative_to(ROOT))]
    return tuple(sorted(p for p in found if p.is_file()))


def _is_built(path: Path) -> bool:
    return any(part in NOT_OURS or part.endswith((".egg-info", "_cache")) for part in path.parts)


def name_of(path: Path) -> str:
    """The path as people write it, from the root of the checkout."""
    return path.relative_to(ROOT).as_posix()


def python_files(*folders: str) -> list[Path]:
    """Python files of the named folders, or of all."""
    chosen = [p for p in files() if p.suffix == ".py"]
    if not folders:
        return chosen
    return [p for p in chosen if name_of(p).startswith(tuple(f"{folder}/" for folder in folders))]


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@functools.cache
def text_of(path: Path) -> str | None:
    """The text of a file, or None for a picture or another binary."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def lines_matching(pattern: str) -> list[str]:
    """`file:line: text` of each line of each text file that the pattern matches."""
    wanted = re.compile(pattern)
    return [
        f"{name_of(path)}:{number}: {line.strip()[:120]}"
        for path in files()
        for number, line in enumerate((text_of(path) or "").splitlines(), start=1)
        if wanted.search(line)
    ]
