"""What `autopilot uninstall` removes is what the levers write (`autopilot.contract.marks`)."""

from __future__ import annotations

from typing import Any

from autopilot.contract.tree import PREFIX
from tests.kits.marks import unnamed


def test_a_mark_that_is_not_removed_is_found() -> None:
    """The look at what the levers write can fail."""
    sent: list[tuple[str, dict[str, Any]]] = [
        ("Job", {"metadata": {"annotations": {f"{PREFIX}new": "1", f"{PREFIX}gone": None}}}),
        ("Service", {"metadata": {"labels": {f"{PREFIX}effect": "1"}}}),
    ]
    assert unnamed(sent) == [
        "annotation gpu-autopilot.io/new on a Job",
        "label gpu-autopilot.io/effect on a Service",
    ]
