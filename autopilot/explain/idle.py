"""The idle score of tenants at one moment, in words and as plain values."""

from __future__ import annotations

from typing import Any

import numpy as np

from autopilot.core.idle.follow import idle_score
from autopilot.core.intake.usage.parts import GPU_UNITS
from autopilot.core.intake.usage.rollup import rollups
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Observation
from autopilot.core.model.units import counted, format_duration, format_ratio
from autopilot.explain.use import MOST_GROUPS, aligned

HOUR_S = 3600.0


def idle_document(observation: Observation, policy: Policy) -> dict[str, Any]:
    """A row for each tenant whose work can be judged; GPU-hours are those of the window."""
    window_s, rows = _rows(observation, policy)
    return {"window_s": window_s, "tenants": rows}


def idle_lines(observation: Observation, policy: Policy) -> list[str]:
    """A table of the tenants with idle work, most idle GPUs first."""
    window_s, rows = _rows(observation, policy)
    if not rows:
        return ["idle work: no running work can be judged yet, for lack of fresh telemetry over the whole window"]
    idle = [row for row in rows if row["idle_guaranteed_gpus"] + row["idle_borrowed_gpus"] > 0]
    if not idle:
        return [f"idle work: none, of {counted(len(rows), 'tenant')} over {format_duration(window_s)}"]
    table = [["", "held GPUs", "judged", "idle, guaranteed", "idle, borrowed", "idle GPU-h", "score"]]
    table += [
        [
            f"tenant {row['name']}",
            f"{row['held_gpus']:.4g}",
            f"{row['judged_gpus']:.4g}",
            f"{row['idle_guaranteed_gpus']:.4g}",
            f"{row['idle_borrowed_gpus']:.4g}",
            f"{row['idle_gpu_h']:.1f}",
            format_ratio(row["score_ratio"]),
        ]
        for row in idle[:MOST_GROUPS]
    ]
    if len(idle) > MOST_GROUPS:
        table.append([f"and {counted(len(idle) - MOST_GROUPS, 'tenant')} more"])
    return [f"idle work over {format_duration(window_s)}:", *(f"  {line}" for line in aligned(table))]


def _rows(observation: Observation, policy: Policy) -> tuple[float, list[dict[str, Any]]]:
    snapshot = observation.snapshot
    window_s = max(snapshot.telemetry.windows_s, default=0.0)
    score = idle_score(snapshot, policy, observation.now_s)
    idle = score.owned_gpus + score.borrowed_gpus
    held = rollups(snapshot, ("tenant",))["tenant"].held_units / GPU_UNITS
    known = np.flatnonzero(score.judged_gpus > 0)
    rows = [
        {
            "name": snapshot.names.tenants[at],
            "held_gpus": float(held[at]),
            "judged_gpus": float(score.judged_gpus[at]),
            "idle_guaranteed_gpus": float(score.owned_gpus[at]),
            "idle_borrowed_gpus": float(score.borrowed_gpus[at]),
            "idle_gpu_h": float(idle[at]) * window_s / HOUR_S,
            "score_ratio": float(idle[at] / held[at]),
        }
        for at in known[np.argsort(-idle[known], kind="stable")].tolist()
    ]
    return window_s, rows
