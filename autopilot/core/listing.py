"""What each source shows of its objects, compared with its last trusted list: the views of an observation.

The caller keeps the objects of that list, because they are too many for a memory; after a restart it has none, and
the core goes by their number (core/sight.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from autopilot.core.records import Batch, Inventory, Listing, View, Work
from autopilot.core.sight import INVENTORY, WORK
from autopilot.core.snapshot import State

Objects = set[str]


def views_of(batches: Sequence[Batch], expected: Iterable[tuple[str, str]],
             known: Mapping[str, Objects]) -> tuple[tuple[View, ...], dict[str, Objects]]:  # fmt: skip
    """The views of these batches, and the objects that each shows, by "<kind>/<source>".

    `expected` are (kind, source) that must answer: one that is silent is an incomplete view. `known` are the objects of
    the last trusted lists; what was reported deleted or is shown ended is taken off them here.
    """
    views: dict[str, View] = {}
    shown: dict[str, Objects] = {}
    for batch in batches:
        for kind, listing, part in (
            (INVENTORY, batch.inventory_list, batch.inventory),
            (WORK, batch.work_list, batch.work),
        ):
            key = f"{kind}/{batch.source}"
            if part is None or (key in views and views[key].listed_s > batch.collected_s):
                continue
            there, ended = _hardware(part) if isinstance(part, Inventory) else _work(part)
            shown[key] = there
            views[key] = _view(batch, kind, listing, there, ended, known.get(key))
    for kind, source in expected:
        if f"{kind}/{source}" not in views:
            reasons = [gap.reason for batch in batches if batch.source == source for gap in batch.gaps]
            views[f"{kind}/{source}"] = View(
                source, kind, False, -inf, 0, reason=(reasons or ["it is silent"])[0]
            )
    return tuple(views.values()), shown


def _view(batch: Batch, kind: str, listing: Listing, there: Objects, ended: list[str],
          known: Objects | None) -> View:  # fmt: skip
    complete, reason = listing.complete, listing.reason
    if complete and 0 <= listing.objects != len(there) + len(ended):
        complete, reason = False, f"it has {listing.objects} objects and lists {len(there) + len(ended)}"
    if known is None:
        return View(batch.source, kind, complete, batch.collected_s, len(there), reason=reason)
    known.difference_update(listing.deleted)
    known.difference_update(ended)
    lost = 0 if there is known else len(known) - len(known & there)
    return View(batch.source, kind, complete, batch.collected_s, len(there), len(known), lost, reason)


def _hardware(inventory: Inventory) -> tuple[Objects, list[str]]:
    return {*inventory.nodes.id.tolist(), *inventory.gpus.uuid.tolist()}, []


def _work(work: Work) -> tuple[Objects, list[str]]:
    """Workloads that have not ended, and services; and workloads that are shown as ended."""
    uids, over = work.workloads.uid, work.workloads.state >= State.SUCCEEDED
    if not over.any():
        return {*uids.tolist(), *work.services.uid.tolist()}, []
    return {*uids[~over].tolist(), *work.services.uid.tolist()}, uids[over].tolist()
