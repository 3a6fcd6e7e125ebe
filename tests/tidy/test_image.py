"""The Dockerfile copies what the installed product needs, and `make image-steps` runs its steps without Docker."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from scripts.run_image_steps import main, steps, user_of
from tests.tidy.tree import ROOT

TEXT = (ROOT / "Dockerfile").read_text("utf-8")


def test_the_build_stage_copies_every_package() -> None:
    """Each source exists, and no package of pyproject.toml is forgotten."""
    copied = {name for word, rest in steps(TEXT) if word == "COPY" for name in rest.split()[:-1]}
    assert {name for name in copied if not (ROOT / name).exists()} == set()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    packages = {name.split(".")[0] for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert packages | {"requirements.lock", "pyproject.toml", "LICENSE"} <= copied


def test_only_the_build_stage_is_run() -> None:
    """A line that goes on is one step; the second stage begins with another FROM."""
    assert list(steps("FROM a AS build\n# no\nRUN b \\\n && c\n\nFROM d\nRUN e\n")) == [
        ("FROM", "a AS build"),
        ("RUN", "b   && c"),
    ]


def test_the_image_runs_as_a_user_without_rights() -> None:
    """By number, as `runAsNonRoot` of Kubernetes asks for."""
    assert user_of(TEXT) >= 10_000
    with pytest.raises(ValueError, match="no USER with a number"):
        user_of("FROM a\nUSER root\n")


def test_a_folder_that_is_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing in it is touched."""
    (tmp_path / "mine").write_text("1")
    assert main([str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
