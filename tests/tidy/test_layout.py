"""Every room has its place in the order of imports."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections import Counter

from tests.conftest import BRIEF, LONG
from tests.tidy.tree import ROOT, files, name_of


def _layers() -> str:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    return " ".join(line for c in contracts["contracts"] if c["name"].startswith("1a.") for line in c["layers"])


def test_every_module_of_the_shell_has_a_layer() -> None:
    """Contract 1a names each file and folder of autopilot/; the linter itself asks this of the core's only."""
    rooms = {
        re.split(r"[/.]", name_of(path))[1]
        for path in files()
        if path.suffix == ".py" and name_of(path).startswith("autopilot/")
    } - {"__init__", "__main__"}
    named = set(re.findall(r"autopilot\.(\w+)", _layers()))
    assert not rooms - named, "give it a layer in pyproject.toml, contract 1a"


def test_contributing_shows_the_present_packages_of_the_core() -> None:
    """Its table is the output of `python scripts/count_structure.py`."""
    shown = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    done = subprocess.run([sys.executable, ROOT / "scripts" / "count_structure.py"], capture_output=True, text=True)
    assert done.stdout.strip() in shown, "run it and copy its output"


def test_test_files_are_importable_side_by_side() -> None:
    """Outside of packages pytest imports a test file by its bare name: of two equal names one would not run."""
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    names = Counter(path.name for path in files)
    twice = sorted(str(path.relative_to(ROOT)) for path in files if names[path.name] > 1)
    assert not twice, "rename all but one"


def test_make_fast_names_the_folders_and_files_that_exist() -> None:
    """The Makefile has the folders of `BRIEF`, and each entry of `LONG` begins the name of a test."""
    folders = re.search(
        r"(?m)^BRIEF := \$\(addprefix tests/,([a-z ]+)\)$", (ROOT / "Makefile").read_text(encoding="utf-8")
    )
    assert folders is not None
    assert [f"tests/{each}" for each in folders[1].split()] == list(BRIEF)
    tests = [
        f"{name_of(path)}::{name}"
        for path in files()
        if path.name.startswith("test_")
        for name in re.findall(r"(?m)^def (test_\w+)", path.read_text(encoding="utf-8"))
    ]
    entries = [entry.partition("[")[0] for entry in LONG]
    assert not [entry for entry in entries if not any(test.startswith(entry) for test in tests)], "remove the entry"
