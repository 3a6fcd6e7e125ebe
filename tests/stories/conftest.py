"""Every story ends with the simulator's checkers: nothing that they watch was broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kits.acting_story import Story


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Story]]:
    """Begins a story on a cluster; its end is checked."""
    begun: list[Story] = []

    def start(**more: Any) -> Story:
        begun.append(Story(tmp_path, **more))
        return begun[-1]

    yield start
    for each in begun:
        each.close()
