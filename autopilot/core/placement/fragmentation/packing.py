"""Packing gangs into histograms of free capacity, for several draws of the demand at once.

A bin counts containers (nodes, or GPUs) of one domain by their free units, so the cost does not grow with the cluster.
Members go to the container that they leave with the least free units (best fit), gangs that need one domain to the
domain with the least room that holds them.
"""

from __future__ import annotations

import numpy as np

from autopilot.core.model.snapshot import I64, Bools


def pack(
    bins: I64, size: int, members: int, count: I64, allowed: Bools, starts: I64 | None, *, spread: bool = False
) -> I64:
    """Place up to `count` [draws] gangs of `members` x `size` units; returns the gangs placed [draws].

    `bins` [draws, domains, free units + 1] is updated. `allowed` [domains]: where members may go. With `starts`,
    the domains form groups, each from one of these rows on, and a gang stays within one group; None: a gang may span
    all domains. `spread`: at most one member in a container.
    """
    most = bins.shape[2] - 1
    if size > most or not count.any():
        return np.zeros_like(count)
    each = np.arange(most + 1) // size
    if spread:
        each = np.minimum(each, 1)
    room = bins * each * allowed[:, None]
    if not room.any():
        return np.zeros_like(count)
    if starts is None:
        placed = np.minimum(count, room.sum(axis=(1, 2)) // members)
        cells = room.transpose(0, 2, 1).reshape(len(bins), -1)  # the fullest containers first, whatever their domain
        taken = _first(cells, placed * members).reshape(len(bins), most + 1, -1).transpose(0, 2, 1)
    else:
        gangs = np.add.reduceat(room.sum(axis=2), starts, axis=1) // members
        chosen = _chosen(gangs, count)
        placed = chosen.sum(axis=1)
        taken = _within(room, chosen * members, starts)
    _remove(bins, taken, np.maximum(each, 1), size)
    return np.asarray(placed)


def _first(cells: I64, wanted: I64) -> I64:
    """Take `wanted` [draws] from `cells` [draws, cells], the first ones first."""
    before = np.cumsum(cells, axis=1) - cells
    return np.clip(wanted[:, None] - before, 0, cells)


def _chosen(gangs: I64, count: I64) -> I64:
    """Gangs in each group [draws, groups], `count` [draws] in all: groups that hold few are filled first."""
    order = np.argsort(gangs, axis=1, kind="stable")
    taken = _first(np.take_along_axis(gangs, order, axis=1), count)
    chosen = np.empty_like(taken)
    np.put_along_axis(chosen, order, taken, axis=1)
    return chosen


def _within(room: I64, wanted: I64, starts: I64) -> I64:
    """Take `wanted` [draws, groups] from `room` [draws, domains, bins], inside each group."""
    draws, domains, width = room.shape
    group = np.searchsorted(starts, np.arange(domains), side="right") - 1
    if len(starts) == domains:
        before = np.cumsum(room, axis=2) - room
        return np.clip(wanted[:, :, None] - before, 0, room)
    cells = room.reshape(draws, -1)
    before = np.cumsum(cells, axis=1) - cells
    first = before[:, starts * width]
    of_cell = np.repeat(group, width)
    return np.clip(wanted[:, of_cell] - (before - first[:, of_cell]), 0, cells).reshape(room.shape)


def _remove(bins: I64, taken: I64, each: I64, size: int) -> None:
    """Update `bins` after `taken` members left containers with room for `each` of them [bins]."""
    full, rest = taken // each, taken % each
    bins -= full + (rest > 0)
    for free in np.flatnonzero(full.any(axis=(0, 1))).tolist():
        bins[:, :, free - size * int(each[free])] += full[:, :, free]
    draw, domain, at = np.nonzero(rest)
    np.add.at(bins, (draw, domain, at - size * rest[draw, domain, at]), 1)
