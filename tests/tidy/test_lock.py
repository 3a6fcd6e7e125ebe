"""The lock file and the list of reasons cover the dependencies, no more and no less."""

from __future__ import annotations

import re
import tomllib

from tests.tidy.tree import ROOT

PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    return {_plain(re.split(r"[\[<>=!~; ]", line)[0]) for line in [*project["dependencies"], *extras]}


def test_every_declared_dependency_is_pinned() -> None:
    """What pyproject.toml asks for, at run time and for development, stands in requirements.lock."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pinned = {_plain(match[1]) for match in PIN.finditer(lock)}
    assert not _declared() - pinned, "run `make lock`"


def test_every_pin_carries_its_hashes() -> None:
    """Each requirement of the lock file names at least one sha256."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", lock)[1:]
    assert blocks
    bare = [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block]
    assert not bare, "run `make lock`"


def test_every_dependency_earns_its_place_in_writing() -> None:
    """docs/decisions/0002-dependencies.md has one row for each declared dependency and for no other."""
    page = (ROOT / "docs/decisions/0002-dependencies.md").read_text(encoding="utf-8")
    rows = {_plain(match[1]) for match in re.finditer(r"(?m)^\| `([^`]+)` \|", page)}
    assert rows == _declared(), "write why it is needed, or take the row out"
