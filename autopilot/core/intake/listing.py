"""The views of an observation: the list of each source, compared with its last trusted list.

The caller keeps the objects of the trusted list, because they are too many for the persisted memory. After a restart
it has none, and the core compares only the number of objects (core/intake/sight.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import is_

from autopilot.core.intake.sight import INVENTORY, WORK
from autopilot.core.model.records import Batch, Inventory, Listing, View, Work
from autopilot.core.model.snapshot import State, Texts

Objects = set[str]


@dataclass(frozen=True, slots=True)
class Shown:
    """The objects of one list, with their columns; identical columns are not read again."""

    objects: Objects
    columns: tuple[Texts, ...]


def views_of(
    batches: Sequence[Batch],
    expected: Iterable[tuple[str, str]],
    known: Mapping[str, Objects],
    before: Mapping[str, Shown],
) -> tuple[tuple[View, ...], dict[str, Shown]]:
    """The views of these batches, and the objects of each, by "<kind>/<source>".

    `expected`: the (kind, source) pairs with a duty to answer; a missing answer is an incomplete view. `known`: the
    objects of the last trusted lists; deleted and ended ones are removed from it in place. `before`: the objects of
    the last lists.
    """
    views: dict[str, View] = {}
    shown: dict[str, Shown] = {}
    for batch in batches:
        for kind, listing, part in (
            (INVENTORY, batch.inventory_list, batch.inventory),
            (WORK, batch.work_list, batch.work),
        ):
            key = f"{kind}/{batch.source}"
            if part is None or (key in views and views[key].listed_s > batch.collected_s):
                continue
            ended: list[str] = []
            if isinstance(part, Inventory):
                shown[key] = _hardware(part, before.get(key))
            else:
                shown[key], ended = _work(part)
            views[key] = _view(batch, kind, listing, shown[key].objects, ended, known.get(key))
    for kind, source in expected:
        if f"{kind}/{source}" not in views:
            reasons = [gap.reason for batch in batches if batch.source == source for gap in batch.gaps]
            views[f"{kind}/{source}"] = View(source, kind, False, -inf, 0, reason=(reasons or ["it is silent"])[0])
    return tuple(views.values()), shown


def _view(batch: Batch, kind: str, listing: Listing, there: Objects, ended: list[str], known: Objects | None) -> View:
    complete, reason = listing.complete, listing.reason
    if complete and 0 <= listing.objects != len(there) + len(ended):
        complete, reason = False, f"it states {listing.objects} objects and lists {len(there) + len(ended)}"
    if known is None:
        return View(batch.source, kind, complete, batch.collected_s, len(there), reason=reason)
    if there is not known:
        known.difference_update(listing.deleted)
        known.difference_update(ended)
    lost = 0 if there is known else len(known) - len(known & there)
    return View(batch.source, kind, complete, batch.collected_s, len(there), len(known), lost, reason)


def _hardware(inventory: Inventory, before: Shown | None) -> Shown:
    columns = (inventory.nodes.id, inventory.gpus.uuid)
    if before is not None and all(map(is_, columns, before.columns)):
        return before
    return Shown({*columns[0].tolist(), *columns[1].tolist()}, columns)


def _work(work: Work) -> tuple[Shown, list[str]]:
    """Services and live workloads; and workloads shown as ended."""
    uids, over = work.workloads.uid, work.workloads.state >= State.SUCCEEDED
    if not over.any():
        return Shown({*uids.tolist(), *work.services.uid.tolist()}, ()), []
    return Shown({*uids[~over].tolist(), *work.services.uid.tolist()}, ()), uids[over].tolist()
