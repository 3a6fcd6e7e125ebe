"""Proposals of the action `recover` to cordon a node in need of a restart, and to open it once it is sound again."""

from __future__ import annotations

import numpy as np

from autopilot.core.effects.draft import Case, NoteCase, Submit, VerbDraft
from autopilot.core.effects.under_recut import under_recut
from autopilot.core.hardware.xid_facts import Remedy, error_of, gpu_remedies
from autopilot.core.model.records import About, Change, Evidence, Note
from autopilot.core.planning.context import Context
from autopilot.core.recovery import cordon
from autopilot.core.recovery.follow_cordons import condemning, to_cordon, to_uncordon

CORDON = Case(
    "recover",
    cordon.KIND,
    "condemned",
    "cordon it: {error} on {gpu}, which asks for {asks_for}; no scheduler uses it until it is repaired",
)
OUT_OF_USE = NoteCase("gpu_out_of_use", "{subject} of {node} takes no new work: {error}, which asks for {asks_for}")
UNCORDON = Case("recover", cordon.KIND, "repaired", "uncordon it: the error that it was cordoned for is gone")
CASES = (CORDON, UNCORDON)

_ASKS = {
    Remedy.INSPECT: "a person's look",
    Remedy.RESET_LATER: "a reset of the GPU when it is idle",
    Remedy.RESET_GPU: "a reset of the GPU",
    Remedy.RESTART_NODE: "a restart of the node",
    Remedy.REPLACE: "another GPU",
}


def propose_cordons(ctx: Context, submit: Submit) -> None:
    """Cordon nodes in need of a restart, and open them once they are sound again. Errors of GPUs are noted."""
    snapshot = ctx.observation.snapshot
    _note_errors(ctx)
    broken = condemning(ctx.memory, snapshot)
    for row in to_cordon(ctx.memory, snapshot):
        gpu = np.flatnonzero((snapshot.gpus.node == row) & broken).tolist()[0]
        error, uuid = f"XID {int(snapshot.gpus.xid[gpu])}", str(snapshot.gpus.uuid[gpu])
        why = (Evidence("error", error), Evidence("gpu", uuid), Evidence("asks_for", "a restart of the node"))
        submit(_draft(ctx, row, CORDON, cordon.Cordon(on=True, reason=f"{error} on {uuid}"), *why))
    for row in to_uncordon(ctx.memory, snapshot):
        submit(_draft(ctx, row, UNCORDON, cordon.Cordon(on=False, reason="repaired on it")))


def _note_errors(ctx: Context) -> None:
    """One note for each GPU kept from new work by an error."""
    snapshot = ctx.observation.snapshot
    remedy = gpu_remedies(snapshot.gpus)
    for gpu in np.flatnonzero((remedy > Remedy.NONE) & ~under_recut(ctx.memory, snapshot)).tolist():
        facts = (
            Evidence("node", str(snapshot.nodes.id[snapshot.gpus.node[gpu]])),
            Evidence("error", error_of(snapshot.gpus, gpu)),
            Evidence("asks_for", _ASKS[Remedy(int(remedy[gpu]))]),
        )
        ctx.plan.note(Note(OUT_OF_USE.code, About.GPU, str(snapshot.gpus.uuid[gpu]), facts=facts))


def _draft(ctx: Context, row: int, case: Case, verb: Change, *why: Evidence) -> VerbDraft:
    """It is worth the use of the node's GPUs up to the horizon."""
    gpus = int(ctx.observation.snapshot.nodes.gpus[row])
    return VerbDraft(
        case=case,
        verb=verb,
        row=row,
        benefit_gpu_s=gpus * ctx.policy.horizon_s,
        cost_gpu_s=0.0,
        evidence=(*why, Evidence("gpus", gpus, "GPUs of the node")),
    )
