"""GPUs that change hands: what victims give up on the what-if, and what stays booked to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autopilot.core.model.snapshot import GPU_MILLI
from autopilot.core.placement.whatif import Layout, WhatIf


def vacate(whatif: WhatIf, rows: Sequence[int], claimed: Sequence[Layout], targets: Mapping[int, Layout]) -> set[int]:
    """Take off what others claim of the GPUs of `rows`, which leave, and place those that move on their `targets`.

    What is not claimed stays booked to them until they are gone, so that nothing else is planned there. Returns the
    rows that gave something up.
    """
    missing = _missing(whatif, claimed)
    cuts = {cut for layout in claimed for cut in layout.instance[layout.instance >= 0].tolist()}
    rests = {}
    for row in rows:
        layout = whatif.layout_of(row)
        rest = _rest(layout, missing, cuts)
        if len(layout) and (rest is not layout or row in targets):
            whatif.evict(row)
            rests[row] = rest
    for row, rest in rests.items():
        after = rest.joined(targets[row]) if row in targets else rest
        if len(after):
            whatif.place(row, after)
    return set(rests)


def _missing(whatif: WhatIf, claimed: Sequence[Layout]) -> dict[int, int]:
    """Thousandths that GPUs lack for what is claimed of them, by GPU."""
    asked: dict[int, int] = {}
    for layout in claimed:
        plain = layout.plain
        for gpu, milli in zip(layout.gpu[plain].tolist(), layout.milli[plain].tolist(), strict=True):
            asked[gpu] = asked.get(gpu, 0) + milli
    lacks = {gpu: int(whatif.gpu_used[gpu]) + milli - GPU_MILLI for gpu, milli in asked.items()}
    return {gpu: milli for gpu, milli in lacks.items() if milli > 0}


def _rest(layout: Layout, missing: dict[int, int], cuts: set[int]) -> Layout:
    """A layout less what is missing elsewhere, which is taken off `missing`; itself when it has none of that."""
    milli = layout.milli.copy()
    stays = np.ones(len(milli), np.bool_)
    for entry, (gpu, cut) in enumerate(layout.places()):
        if cut >= 0:
            stays[entry] = cut not in cuts
        elif missing.get(gpu, 0) > 0:
            given = min(int(milli[entry]), missing[gpu])
            missing[gpu] -= given
            milli[entry] -= given
            stays[entry] = milli[entry] > 0
    if stays.all() and (milli == layout.milli).all():
        return layout
    return Layout(layout.gpu[stays], layout.instance[stays], milli[stays])
