"""A few whole decisions, kept as files: a change of any of them is seen and read."""

from __future__ import annotations

import pytest

from tests.golden.refresh import FOLDER, text_of
from tests.golden.scenes import SCENES


@pytest.mark.parametrize("name", sorted(SCENES))
def test_the_decision_is_the_one_on_file(name: str) -> None:
    """The decision of a scene equals its file; `python -m tests.golden.refresh` writes the files anew."""
    assert text_of(SCENES[name]) == (FOLDER / f"{name}.json").read_text(encoding="utf-8")


def test_every_file_has_its_scene() -> None:
    """No golden file is left over."""
    assert {path.stem for path in FOLDER.glob("*.json")} == set(SCENES)
