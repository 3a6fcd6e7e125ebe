"""The API's form of unknown data: null in each field, its age, and the list of stale parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

from typing_extensions import is_typeddict

from autopilot.http.documents import encode
from autopilot.service.known import LastKnown
from autopilot.service.published import Published

Document = dict[str, Any]
AGES = ("age_s", "telemetry_age_s")


def blank(shape: Any) -> Any:
    """A document of this shape with null in each field."""
    return {name: blank(each) for name, each in get_type_hints(shape).items()} if is_typeddict(shape) else None


def seen_or_blank(latest: Published, shape: Any, build: Callable[[], Document], **always: Any) -> Document:
    """The document of a tick; if it did not see the cluster, null in all fields but `tick`, `now_s` and `always`."""
    tick = {"tick": latest.decision.tick, "now_s": latest.observation.now_s}
    found = build() if latest.sees else {name: value for name, value in blank(shape).items() if name not in AGES}
    return found | tick | always


def aged(body: bytes, known: LastKnown) -> bytes:
    """An encoded document of a tick with the ages of now (`view_answers.Aged`)."""
    ages = known.ages()
    return body[:-1] + b"," + encode(dict(zip(AGES, (ages.cluster_s, ages.telemetry_s), strict=True)))[1:]


def stale(latest: Published, known: LastKnown) -> Iterator[Document]:
    """Parts without present data: their age and reason, the worst first."""
    if not latest.leads:
        return  # its last tick is old by design; the leader knows the cluster
    ages, late_s = known.ages(), known.late_s(latest.took_s)
    if ages.tick_s is not None and ages.tick_s > late_s:
        yield _row("the last tick", ages.tick_s, "the next one has not ended; the log of the controller has the reason")
    if not latest.sees:
        yield _row("the cluster", ages.cluster_s, "its lists are not complete, so nothing of it is known now")
    limit_s = max(latest.policy.freshness.telemetry_s / known.speed, late_s)
    for each in latest.collectors:
        age_s = ages.collectors_s.get(each.name)
        old = age_s is not None and age_s - (ages.tick_s or 0.0) > limit_s  # at that tick: a late one is said above
        if why := each.problem or (f"it has delivered nothing newer for {limit_s:.0f} s" if old else ""):
            yield _row(f"data of {each.name}", age_s, why)
    for gap in latest.observation.gaps:
        if not (gap.object_id or gap.signal) and gap.source not in {each.name for each in latest.collectors}:
            yield _row(f"answers of {gap.source}", None, gap.reason)


def _row(what: str, age_s: float | None, why: str) -> Document:
    return {"what": what, "age_s": age_s, "why": why}
