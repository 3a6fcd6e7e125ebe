"""Turn shared nodes back that nobody uses any more, so that whole GPUs can be given out there again."""

from __future__ import annotations

import numpy as np

from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Case, Submit
from autopilot.core.model.objects import Sharing
from autopilot.core.model.records import Evidence
from autopilot.core.model.work import named
from autopilot.core.planning.context import Context
from autopilot.core.sharing import set_sharing
from autopilot.core.sharing.follow_turns import turns_under_way
from autopilot.core.sharing.seats import configs_of
from autopilot.core.sharing.set_sharing import TurnDraft, turned
from autopilot.core.sharing.share import in_use, short_gpus

NAME = "unshare"
BACK = Case(
    NAME,
    set_sharing.KIND,
    words="turn it back to whole GPUs: nobody has used its shares for {unused}",
)


def propose(ctx: Context, submit: Submit) -> None:
    """One proposal for each node whose shares nobody has used for `sharing.unused_s`, while its GPUs are needed whole.

    That is as far as work that found no place waits for more than are free, or nodes are offered back that nothing
    needs.
    """
    nodes, memory, rules = ctx.observation.snapshot.nodes, ctx.memory.sharing, ctx.policy.sharing
    shared = (nodes.replicas > 1) & (nodes.sharing_offers != 0) & ctx.whatif.node_ok
    if not shared.any() or (short := short_gpus(ctx)) <= 0:
        return
    turning = turns_under_way(ctx.memory)
    wholes = {each.key for each in ctx.observation.snapshot.names.sharing_configs if each.sharing is Sharing.WHOLE}
    back = {uid for uid, key in turning.items() if key in wholes}
    short -= float(nodes.gpus[named(nodes.id, back)].sum())
    for row in np.flatnonzero(shared & ~in_use(ctx)).tolist():
        uid = str(nodes.id[row])
        whole = next((each for each in configs_of(ctx, row) if each.sharing is Sharing.WHOLE), None)
        unused_s = ctx.now_s - memory.unused_s.get(uid, ctx.now_s)
        settled = ctx.now_s >= memory.turned_s.get(uid, -np.inf) + rules.dwell_s
        if short <= 0 or whole is None or uid in turning or not settled or unused_s < rules.unused_s:
            continue
        gpus = int(nodes.gpus[row])
        accepted = submit(
            TurnDraft(
                case=BACK,
                verb=turned(row, whole, ctx.observation.snapshot),
                row=row,
                benefit_gpu_s=gpus * ctx.policy.horizon_s,
                cost_gpu_s=0.0,
                evidence=(
                    Evidence("unused", round(unused_s, 3), "s"),
                    Evidence("gpus", gpus, "GPUs of the node"),
                    Evidence("config", whole.key),
                ),
            )
        )
        short -= gpus if accepted else 0


def timers(ctx: Context) -> list[float]:
    """When the shares of a node have been unused for long enough."""
    memory, rules = ctx.memory.sharing, ctx.policy.sharing
    return [
        max(since_s + rules.unused_s, memory.turned_s.get(uid, -np.inf) + rules.dwell_s)
        for uid, since_s in memory.unused_s.items()
    ]


ACTION = Action(NAME, "turn shared nodes back that nobody uses", propose, (BACK,), timers=timers)
