"""Every story ends with the simulator's checkers: nothing that they watch was broken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kits.acting_story import Begin
from tests.kits.standing import USUAL


@pytest.fixture
def begin(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Begin]:
    """Begins a story on a cluster; its end is checked. Its parameter: how the controller-manager stands still."""
    found = Begin(tmp_path, standing=getattr(request, "param", USUAL))
    yield found
    for each in found.begun:
        each.close()
