"""Marks of the controller on objects of others: annotations by kind. The uninstallation removes them."""

from __future__ import annotations

from collections.abc import Mapping

from autopilot.contract.annotations import (
    CHECKPOINT_REQUEST,
    CORDONED,
    EFFECT,
    EPOCH,
    MIG_GEOMETRY,
    OFFERED,
    SHARING_CONFIG,
    STOPPED,
)
from autopilot.contract.scaling import CEILING, FLOOR
from autopilot.contract.tree import PREFIX

MARKS: Mapping[str, frozenset[str]] = {
    "Node": frozenset({EFFECT, EPOCH, CORDONED, MIG_GEOMETRY, OFFERED, SHARING_CONFIG}),
    "Deployment": frozenset({PREFIX + FLOOR, PREFIX + CEILING, EPOCH}),
    "StatefulSet": frozenset({PREFIX + FLOOR, PREFIX + CEILING, EPOCH}),
    "HorizontalPodAutoscaler": frozenset({PREFIX + FLOOR, EPOCH}),
    "Job": frozenset({EFFECT, EPOCH, STOPPED}),
    "Workload": frozenset({EFFECT, EPOCH, STOPPED}),
    "Pod": frozenset({EFFECT, EPOCH, CHECKPOINT_REQUEST}),
}
