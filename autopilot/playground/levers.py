"""Where the autopilot acts: what is written through the API takes effect in the world at the same virtual moment.

A write is recognised by what the server holds: where it differs from what the engine knows, somebody wrote it.
"""

from __future__ import annotations

from typing import Any

from apiserver.store import Event
from autopilot.playground.acting import GATED_BY
from autopilot.playground.engine import Checked
from autopilot.playground.gangs import JOBS, WORKLOADS
from autopilot.playground.projection import Projection
from simulator.running.engine import Engine

Obj = dict[str, Any]


class Levers:
    """Writes of Workloads and Jobs, carried into the engine."""

    def __init__(self, engine: Engine, projection: Projection, checked: Checked) -> None:
        self._engine, self._projection, self._checked = engine, projection, checked

    def listen(self) -> None:
        """Follow Workloads and Jobs from now on."""
        store = self._projection.server.store
        store.subscribe(WORKLOADS, self._on_workload)
        store.subscribe(JOBS, self._on_job)

    def _on_workload(self, event: Event) -> None:
        """A check was written, `spec.active` changed, or a gate was removed."""
        owners = event.obj["metadata"].get("ownerReferences") or [{}]
        job = self._projection.job_of_uid.get(owners[0].get("uid", ""))
        metadata = event.obj["metadata"]
        stored = self._projection.server.store.get(WORKLOADS, metadata["namespace"], metadata["name"])
        if job is None or stored is None:
            return
        entry = self._checked.entry(job)
        rows = (stored.get("status") or {}).get("admissionChecks") or []
        if rows and not _same(rows, entry.rows()):
            self._at_once(lambda now_s: self._checked.set_checks(job, rows, now_s))
        active = bool(stored["spec"].get("active", True))
        if active != entry.active:
            self._at_once(lambda now_s: self._checked.set_active(job, now_s, active=active))
        gates = (stored["metadata"].get("annotations") or {}).get(GATED_BY, "")
        if gates != entry.gates:
            self._at_once(lambda now_s: self._checked.set_gates(job, gates, now_s))

    def _on_job(self, event: Event) -> None:
        """The gates of a Job are those of its Workload."""
        job = self._projection.job_of_uid.get(event.obj["metadata"]["uid"])
        if job is None or event.type == "DELETED":
            return
        gates = (event.obj["metadata"].get("annotations") or {}).get(GATED_BY, "")
        if set(_names(self._checked.entry(job).gates)) - set(_names(gates)):
            self._at_once(lambda now_s: self._checked.set_gates(job, gates, now_s))

    def _at_once(self, action: Any) -> None:
        self._engine.at(self._engine.now_s, action)


def _names(gates: str) -> list[str]:
    return [each.strip() for each in gates.split(",") if each.strip()]


def _same(rows: list[Obj], known: tuple[Obj, ...]) -> bool:
    """Whether the checks say what is known."""
    return {each["name"]: each for each in rows} == {each["name"]: each for each in known}
