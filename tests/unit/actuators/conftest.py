"""One cluster for all tests of a module, and a look at what the levers leave on objects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kits.acting_kit import CHECKED, Acting
from tests.kits.marks import recorded, unnamed


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Acting]:
    """Three nodes of eight GPUs, queue `a` of 24 GPUs with our check, and queue `free` of 24 without."""
    found = Acting(tmp_path_factory.mktemp("acting"))
    found.add_check()
    found.kueue.queue("a", 24, admissionChecksStrategy=CHECKED)
    found.kueue.queue("free", 24)
    found.run(2)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _marks_are_named() -> Iterator[None]:
    """Every annotation and label that a lever writes is in the table of those that docs/install.md removes."""
    with recorded() as sent:
        yield
    assert not unnamed(sent), "add it to autopilot/contract/marks.py"
