"""The right size of under-used work: its greatest use over days, and a sufficient size.

Work is watched while it uses at most half of its GPUs: SM activity over the longest window, all parts measured. Any
window above that, a shared GPU and a coarse counter end the watch, so the figures are the most of any window. A
sufficient size is the smallest MIG instance of the GPU model, or the fewest whole GPUs, with `HEADROOM` on activity and
memory. It is advice; nothing acts on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import numpy as np

from autopilot.core.hardware.dcgm import Quality
from autopilot.core.hardware.mig_profiles import compute_share, find_gpu_model, memory_mib
from autopilot.core.intake.usage.table import usage_of
from autopilot.core.model.memory.idle import SizeRecord
from autopilot.core.model.snapshot import ClusterSnapshot, State
from autopilot.core.model.work import named

LOW_RATIO = 0.5
"""Use of what is held up to which work is watched: half of it would do."""
HEADROOM = 1.25
"""On the most that was used: the longest window is a mean, and use grows."""


def watched(known: Mapping[str, SizeRecord], snapshot: ClusterSnapshot, now_s: float) -> dict[str, SizeRecord]:
    """Records after a look at all work, without those of vanished or busier work."""
    work, table = snapshot.workloads, snapshot.telemetry
    if not table.windows_s:
        return dict(known)
    at, use = int(np.argmax(table.windows_s)), usage_of(snapshot, now_s)
    held, sm, used_mib = use.held_gpus, use.values("sm_active_ratio")[at], use.values("fb_used_mib")[at]
    guessed = use.estimates("sm_active_ratio")[at] | use.estimates("fb_used_mib")[at]
    running = (work.state == State.RUNNING) & (held > 0)
    with np.errstate(invalid="ignore"):
        sure = running & use.covered[at] & (use.measured_ratio[at] == 1.0) & (use.quality == Quality.SM_ACTIVE)
        sure &= (used_mib >= 0) & ~guessed
        sure &= use.age_s <= max(table.windows_s)
        low = sure & (sm <= LOW_RATIO)
    stays = named(work.uid, known) & running & ~sure if known else np.zeros(len(held), np.bool_)
    found = {uid: known[uid] for uid in work.uid[stays].tolist()}  # in a blackout nothing is known
    rows = np.flatnonzero(low)
    figures = (work.uid[rows].tolist(), held[rows].tolist(), sm[rows].tolist(), used_mib[rows].tolist())
    for uid, gpus, active_ratio, mib in zip(*figures, strict=True):
        before = known.get(uid)
        if before is None or before.gpus != gpus:
            before = SizeRecord(now_s - max(table.windows_s), gpus)
        found[uid] = SizeRecord(
            before.since_s,
            gpus,
            max(before.most_gpus, round(active_ratio * gpus, 4)),
            max(before.most_mib, round(mib, 1)),
        )
    return found


def right_size(record: SizeRecord, model: str, gpu_mib: float) -> str:
    """A sufficient size for that use on this GPU model: `2g.20gb`, `2 GPUs`; "" if nothing smaller suffices.

    `gpu_mib` is the memory of a whole GPU; NaN if unknown.
    """
    gpus, need_mib = record.most_gpus * HEADROOM, record.most_mib * HEADROOM
    facts = find_gpu_model(model)
    for profile in facts.core_profiles if facts is not None else ():
        share = float(compute_share(facts or model, profile))
        if share >= min(record.gpus, 1.0):
            break
        if share >= gpus and memory_mib(facts or model, profile) >= need_mib:
            return profile
    if not gpu_mib > 0:
        return ""
    whole = max(ceil(gpus), ceil(need_mib / gpu_mib), 1)
    return "" if whole >= record.gpus else f"{whole} GPU{'' if whole == 1 else 's'}"
