"""Every room has its place in the order of imports."""

from __future__ import annotations

import re
import tomllib

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
