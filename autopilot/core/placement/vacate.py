"""GPUs on their way from victims to newcomers: the claimed ones are taken off, the rest stays booked to the victims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autopilot.core.model.snapshot import GPU_MILLI
from autopilot.core.placement.whatif import Layout, WhatIf


def vacate(whatif: WhatIf, rows: Sequence[int], claimed: Sequence[Layout], targets: Mapping[int, Layout]) -> set[int]:
    """Take the GPUs in `claimed` off the leaving `rows`, and place moving rows on their `targets` as well.

    The rest stays booked to the victims until they are gone, so that nothing else is planned there. Returns the rows
    with a loss.
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
    """Thousandths missing on each claimed GPU, beside its present use."""
    asked: dict[int, int] = {}
    for layout in claimed:
        plain = layout.plain
        for gpu, milli in zip(layout.gpu[plain].tolist(), layout.milli[plain].tolist(), strict=True):
            asked[gpu] = asked.get(gpu, 0) + milli
    lacks = {gpu: int(whatif.gpu_used[gpu]) + milli - GPU_MILLI for gpu, milli in asked.items()}
    return {gpu: milli for gpu, milli in lacks.items() if milli > 0}


def _rest(layout: Layout, missing: dict[int, int], cuts: set[int]) -> Layout:
    """A layout less the missing thousandths and claimed instances; itself if it has none of them.

    Takes the thousandths off `missing`.
    """
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
