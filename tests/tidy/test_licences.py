"""Every package that the product is shipped with has a licence that lets everybody use and pass it on."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution

from tests.tidy.tree import ROOT

PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(.*)", re.MULTILINE)
PERMISSIVE = {
    "0BSD", "Apache-2.0", "Apache Software License", "BSD License", "BSD-2-Clause", "BSD-3-Clause",
    "3-Clause BSD License", "CC0-1.0", "CNRI-Python", "ISC License (ISCL)", "MIT", "MIT License", "MIT-0", "MIT-CMU",
    "PSF-2.0", "Python Software Foundation License", "Zlib",
}  # fmt: skip
EXCEPTIONS = {"certifi": "Mozilla Public License 2.0 (MPL 2.0)"}
"""Certificates only: the licence covers its own files, which are passed on unchanged."""
STATED_IN_FILE = {"cel-python": "Apache License", "skops": "MIT License"}
"""Packages whose metadata names no licence: the first words of their file."""


def licences_of(name: str) -> list[str]:
    """The licences of an installed package, from its metadata. Raises PackageNotFoundError."""
    metadata = distribution(name).metadata
    stated = metadata.get_all("License-Expression")
    if stated:
        return re.split(r" AND | OR ", stated[0])
    classed = [each.split(" :: ")[-1] for each in metadata.get_all("Classifier") or () if each.startswith("License ::")]
    return [each for each in classed if each != "OSI Approved"] or metadata.get_all("License") or [""]


def file_of(name: str) -> str:
    """The text of the licence that a package brings."""
    found = [each for each in distribution(name).files or () if each.name == "LICENSE"]
    return found[0].read_text() if found else ""


def test_every_package_at_run_time_is_permissive() -> None:
    """By requirements.lock; one for another platform only is not looked at."""
    wrong, seen = {}, 0
    for name, _, marker in PIN.findall((ROOT / "requirements.lock").read_text("utf-8")):
        try:
            found = licences_of(name)
        except PackageNotFoundError:
            assert "platform" in marker, f"{name} is not installed: run `make setup`"
            continue
        seen += 1
        stated = STATED_IN_FILE.get(name)
        if stated is not None and found == [""]:
            assert stated in file_of(name)[:400], name
        elif set(found) - PERMISSIVE - {EXCEPTIONS.get(name)}:
            wrong[name] = found
    assert wrong == {}
    assert seen > 50
