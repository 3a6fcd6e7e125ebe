"""The table of checks, in their order in the report."""

from __future__ import annotations

from collections.abc import Iterator

from autopilot.readiness.access import identity, reachable
from autopilot.readiness.admission import admission
from autopilot.readiness.capacity import capacity
from autopilot.readiness.kueue import kueue
from autopilot.readiness.line import Asked, Check, Line, Status
from autopilot.readiness.nodes import gpu_nodes
from autopilot.readiness.rights import permissions
from autopilot.readiness.telemetry import telemetry

CHECKS: tuple[Check, ...] = (identity, permissions, admission, gpu_nodes, kueue, capacity, telemetry)


def run_checks(asked: Asked) -> Iterator[Line]:
    """Every line, as it is found. Without an answer of the API server, only telemetry is looked at."""
    answers = True
    for line in reachable(asked):
        answers = answers and not (line.check == "api-server" and line.status == Status.FAILED)
        yield line
    for check in CHECKS if answers else (telemetry,):
        yield from check(asked)
