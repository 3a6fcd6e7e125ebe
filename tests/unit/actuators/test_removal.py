"""What docs/install.md removes is what the levers write; `tests/kube/test_install.py` runs its commands."""

from __future__ import annotations

from typing import Any

from autopilot.contract.tree import PREFIX
from tests.kits.install_kit import removal
from tests.kits.marks import MARKS, unnamed


def test_every_mark_has_its_command() -> None:
    """By kind, in the `kubectl annotate` of the section; none names a mark that is not written."""
    plurals = {"Node": "nodes", "Job": "jobs", "Pod": "pods", "Workload": "workloads.kueue.x-k8s.io"}
    plurals |= {"Deployment": "deployments", "StatefulSet": "statefulsets"}
    plurals["HorizontalPodAutoscaler"] = "horizontalpodautoscalers"
    removed: dict[str, set[str]] = {}
    for command in removal():
        if command.startswith("kubectl annotate") and " --all " in command:
            what, keys = command.split()[2], {word[:-1] for word in command.split() if word.endswith("-")}
            for plural in what.split(","):
                removed.setdefault(plural, set()).update(keys)
    assert {plural: removed[plural] >= MARKS[kind] for kind, plural in plurals.items()} == dict.fromkeys(removed, True)
    assert set().union(*removed.values()) == set().union(*MARKS.values())


def test_a_mark_that_no_command_removes_is_found() -> None:
    """The look at what the levers write can fail."""
    sent: list[tuple[str, dict[str, Any]]] = [
        ("Job", {"metadata": {"annotations": {f"{PREFIX}new": "1", f"{PREFIX}gone": None}}}),
        ("Service", {"metadata": {"labels": {f"{PREFIX}effect": "1"}}}),
    ]
    assert unnamed(sent) == [
        "annotation gpu-autopilot.io/new on a Job",
        "label gpu-autopilot.io/effect on a Service",
    ]
