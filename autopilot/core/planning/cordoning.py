"""Proposals of the action `recover` to cordon a node that must be restarted, and to open it when it is sound again."""

from __future__ import annotations

import numpy as np

from autopilot.core.model.records import Evidence
from autopilot.core.planning.context import Context
from autopilot.core.planning.draft import Case, CordonDraft, Submit
from autopilot.core.tracking.cordons import condemning, to_cordon, to_uncordon

CORDON = Case(
    "recover",
    "cordon",
    "condemned",
    "cordon it: {error} on {gpu}, which asks for {asks_for}; no scheduler uses it until it is repaired",
)
UNCORDON = Case("recover", "cordon", "repaired", "uncordon it: the error that it was cordoned for is gone")


def propose_cordons(ctx: Context, submit: Submit) -> None:
    """Cordon nodes that must be restarted, and open them when they are sound again."""
    snapshot = ctx.observation.snapshot
    broken = condemning(ctx.memory, snapshot)
    for row in to_cordon(ctx.memory, snapshot):
        bad = np.flatnonzero((snapshot.gpus.node == row) & broken).tolist()
        why = (
            Evidence("error", f"XID {int(snapshot.gpus.xid[bad[0]])}"),
            Evidence("gpu", str(snapshot.gpus.uuid[bad[0]])),
        )
        submit(_cordon_draft(ctx, row, CORDON, *why, Evidence("asks_for", "a restart of the node"), on=True))
    for row in to_uncordon(ctx.memory, snapshot):
        submit(_cordon_draft(ctx, row, UNCORDON, on=False))


def _cordon_draft(ctx: Context, row: int, case: Case, *why: Evidence, on: bool) -> CordonDraft:
    """It is worth the use of the node's GPUs up to the horizon."""
    gpus = int(ctx.observation.snapshot.nodes.gpus[row])
    return CordonDraft(
        case=case,
        node=row,
        on=on,
        benefit_gpu_s=gpus * ctx.policy.horizon_s,
        cost_gpu_s=0.0,
        evidence=(*why, Evidence("gpus", gpus, "GPUs of the node")),
    )
