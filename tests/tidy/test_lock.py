"""The lock files and the list of reasons cover the dependencies, no more and no less."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from typing import Any

import pytest

from tests.tidy.tree import ROOT

LOCK, DEV_LOCK = "requirements.lock", "requirements-dev.lock"

PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def _names(lines: Iterable[str]) -> set[str]:
    return {_plain(re.split(r"[\[<>=!~; ]", line)[0]) for line in lines}


def _extra(name: str) -> list[str]:
    lines: list[str] = _project()["optional-dependencies"][name]
    return lines


def _declared() -> set[str]:
    return _names([*_project()["dependencies"], *_extra("build"), *_extra("dev")])


def _lock(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _pins(name: str) -> dict[str, str]:
    return {_plain(match[1]): match[2] for match in PIN.finditer(_lock(name))}


def test_every_declared_dependency_is_pinned() -> None:
    """What pyproject.toml asks for at run time stands in requirements.lock; with the tools, in
    requirements-dev.lock.
    """
    assert not _names([*_project()["dependencies"], *_extra("build")]) - _pins(LOCK).keys(), "run `make lock`"
    assert not _declared() - _pins(DEV_LOCK).keys(), "run `make lock`"


def test_the_demo_installs_no_tools() -> None:
    """requirements.lock pins nothing that only tests and checks need, and the same versions as
    requirements-dev.lock.
    """
    assert not _names(_extra("dev")) & _pins(LOCK).keys(), "run `make lock`"
    assert _pins(LOCK).items() < _pins(DEV_LOCK).items(), "run `make lock`"


@pytest.mark.parametrize("name", [LOCK, DEV_LOCK])
def test_every_pin_carries_its_hashes(name: str) -> None:
    """Each requirement of a lock file names at least one sha256."""
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", _lock(name))[1:]
    assert blocks
    bare = [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block]
    assert not bare, "run `make lock`"


def test_every_dependency_earns_its_place_in_writing() -> None:
    """docs/decisions/0002-dependencies.md has one row for each declared dependency and for no other."""
    page = (ROOT / "docs/decisions/0002-dependencies.md").read_text(encoding="utf-8")
    rows = {_plain(match[1]) for match in re.finditer(r"(?m)^\| `([^`]+)` \|", page)}
    assert rows == _declared(), "write why it is needed, or take the row out"
