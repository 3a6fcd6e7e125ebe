"""Places on parts of GPUs: shares, and MIG instances. Both fill GPUs in use before they open an empty one."""

from __future__ import annotations

import numpy as np

from autopilot.core.model.records import Code, Evidence
from autopilot.core.model.snapshot import GPU_MILLI, I32, Bools
from autopilot.core.placement.shapes import Fit, Miss, Shape
from autopilot.core.placement.whatif import Layout, WhatIf


def find_shares(whatif: WhatIf, shape: Shape, suits: Bools, room: I32) -> Fit | Miss:
    """Shares of GPUs, one a member: the fullest GPU with room for the share, an empty one last."""
    gpus = whatif.snapshot.gpus
    usable = whatif.gpu_usable & suits[gpus.node]
    opens = usable & (whatif.gpu_used == 0)
    # number of each empty GPU on its node: as many as there is room for may be opened
    opened = np.cumsum(opens)
    first = np.concatenate([[0], opened])[whatif.snapshot.nodes.first_gpu][gpus.node]
    may_use = usable & (~opens | (opened - first <= room[gpus.node]))
    shares = np.where(may_use, (GPU_MILLI - whatif.gpu_used) // shape.milli, 0)
    fullest = np.argsort(np.where(shares > 0, -whatif.gpu_used, GPU_MILLI + 1), kind="stable")
    order = np.repeat(fullest, shares[fullest])[: shape.gpus]
    if len(order) < shape.gpus:
        left = float((GPU_MILLI - whatif.gpu_used[usable]).sum() / GPU_MILLI)
        need = shape.gpus * shape.milli / GPU_MILLI
        return Miss(Code.CAPACITY if left < need else Code.FRAGMENTED, left, need)
    gpu = order.astype(np.int32)
    layout = Layout(gpu, np.full(len(gpu), -1, np.int32), np.full(len(gpu), shape.milli, np.int32))
    used = float(whatif.gpu_used[gpu].mean() / GPU_MILLI)
    return Fit(
        layout,
        gpus.node[gpu],
        used,
        (Evidence("share_packing", round(used, 4), "share of the GPU already in use"),),
    )


def find_instances(whatif: WhatIf, shape: Shape, suits: Bools, room: I32, barred: I32 | None = None) -> Fit | Miss:
    """Free or possible MIG instances of the profile, one a member, on the GPU with the most instances in use.

    `room` [nodes]: whole GPUs to open at most; `barred`: rows of instances held for others.
    """
    gpus = whatif.snapshot.gpus
    found = whatif.usable_instances(shape.profile)
    if barred is not None and len(barred):
        found = found[~np.isin(found, barred)]
    if len(whatif.places):
        found = np.concatenate([found, find_places(whatif, shape.profile, suits, room)])
    gpu = whatif.gpus_of(found)
    if shape.gpus == 1 and len(found):  # the usual case: most often the best of all suits
        best = whatif.gpu_cuts_used[gpu].argmax()
        if suits[gpus.node[gpu[best]]]:
            return on_instances(whatif, found[best : best + 1])
    found = found[suits[gpus.node[gpu]]]
    if len(found) < shape.gpus:
        return Miss(Code.MIG_GEOMETRY, float(len(found)), float(shape.gpus))
    if shape.per_member > 1:  # the instances of one member lie on one node
        here = np.bincount(gpus.node[whatif.gpus_of(found)], minlength=len(suits))
        members = here // shape.per_member
        if int(members.sum()) < -(-shape.gpus // shape.per_member):
            return Miss(Code.MIG_GEOMETRY, float(members.sum() * shape.per_member), float(shape.gpus))
        found = found[np.argsort(-members[gpus.node[whatif.gpus_of(found)]], kind="stable")]
        node = gpus.node[whatif.gpus_of(found)]
        starts = np.concatenate([[0], np.flatnonzero(np.diff(node)) + 1])
        number = np.arange(len(found)) - np.repeat(starts, np.diff(np.append(starts, len(found))))
        found = found[number < members[node] * shape.per_member]
        return on_instances(whatif, found[: shape.gpus])
    return on_instances(whatif, fullest_first(whatif, found)[: shape.gpus])


def find_places(whatif: WhatIf, profile: int, suits: Bools, room: I32) -> I32:
    """Possible instances (rows) of a profile beside each other, on suitable nodes, by GPU and first slice.

    All instances of a profile on a GPU have one length, so the first free slices leave room for the most of them.
    Uncut GPUs are opened as far as there is `room` [nodes], the lowest numbers first.
    """
    places, node = whatif.places, whatif.snapshot.gpus.node
    at = np.flatnonzero(places.profile == profile).astype(np.int32)
    at = at[suits[node[places.gpu[at]]]]
    at = at[whatif.open(at + places.first)]
    gpu, uncut = places.gpu[at], ~whatif.cut(places.gpu[at])
    fresh = np.unique(gpu[uncut])
    _, begins, number = np.unique(node[fresh], return_index=True, return_inverse=True)
    fresh = fresh[np.arange(len(fresh)) - begins[number] < room[node[fresh]]]
    at = at[~uncut | np.isin(gpu, fresh)]
    taken, chosen = np.zeros(len(node), np.int32), [np.empty(0, np.int32)]
    for start in np.unique(places.start[at]).tolist():  # at most one place of a GPU each
        here = at[places.start[at] == start]
        here = here[(taken[places.gpu[here]] & places.mask[here]) == 0]
        taken[places.gpu[here]] |= places.mask[here]
        chosen.append(here)
    return (np.sort(np.concatenate(chosen)) + places.first).astype(np.int32)


def free_instances(whatif: WhatIf) -> Bools:
    """Existing instances without a holder. Shape [instances]."""
    return np.asarray(whatif.instance_alive & (whatif.instance_used == 0))


def fullest_first(whatif: WhatIf, instances: I32) -> I32:
    """These instances in order of the instances in use on their GPU, most first."""
    return instances[np.argsort(-whatif.gpu_cuts_used[whatif.gpus_of(instances)], kind="stable")]


def on_instances(whatif: WhatIf, order: I32) -> Fit:
    """These free instances as a place."""
    gpu = whatif.gpus_of(order)
    busy = float(whatif.gpu_cuts_used[gpu].mean())
    layout = Layout(gpu, order, np.zeros(len(order), np.int32))
    evidence = Evidence("instances_in_use_on_gpu", busy, "instances")
    return Fit(layout, whatif.snapshot.gpus.node[gpu], busy, (evidence,))
