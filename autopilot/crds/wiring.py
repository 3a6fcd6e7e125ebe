"""The keeper of the custom resources from the settings of the service."""

from __future__ import annotations

import time
from collections.abc import Callable

from autopilot.crds.approvals import Approvals
from autopilot.crds.keeper import KIND, Keeper
from autopilot.crds.other_policies import OtherPolicies
from autopilot.crds.policy_status import PolicyStatus
from autopilot.service.published import Published
from autopilot.service.wiring import Service


def open_keeper(service: Service) -> Keeper | None:
    """The keeper, started, beside a real cluster if its settings ask for one; else None. `close` ends it."""
    given = service.settings.kubernetes
    if given is None or service.api is None or service.lists is None:
        return None
    if not given.recommendations and given.policy_object is None:
        return None
    extra: list[Callable[[Published], str]] = []
    if service.cluster_policy is not None:
        place, api = service.cluster_policy.place, service.api
        extra.append(PolicyStatus(service.cluster_policy, api.get, api.send, time.monotonic))
        extra.append(OtherPolicies(place, api.get, api.send, time.monotonic))
    approvals = Approvals(service.publisher, service.inbox, service.record, service.clock_s, service.loop.wake)
    listing = service.lists(KIND)
    keeper = Keeper(listing, service.api, service.publisher, approvals, given.recommendations, extra=extra)
    service.health_of.append(lambda: keeper.health)
    service.exposed.counts.append(keeper.counts)
    if given.recommendations:
        listing.on_change = keeper.wake
        listing.start()
        keeper.closers.append(listing.close)
    keeper.start()
    return keeper
