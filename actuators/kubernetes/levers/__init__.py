"""The levers, as one table: the first that suits the objects of an instruction is used. One file for each lever."""

from __future__ import annotations

from actuators.kubernetes.levers import admission_check, service_scale
from actuators.kubernetes.levers.base import Lever

LEVERS: tuple[Lever, ...] = (admission_check.LEVER, service_scale.LEVER)
"""Milder levers first."""
