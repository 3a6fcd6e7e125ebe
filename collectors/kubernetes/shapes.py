"""The kinds of pods of a gang, with their numbers and requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autopilot.contract import MOST_GPUS
from collectors.kubernetes.asks import Ask, Claimed, ask_of
from collectors.kubernetes.gangs import KUEUE_TOTAL, SET_SIZE, Gang, PodFacts, unplaced
from collectors.kubernetes.parts import parts_of
from collectors.kubernetes.wire import Meta, PodSpec

ClaimedBy = Callable[[str, PodSpec, int], Claimed]
"""Called with a namespace, a pod template and a number of pods. Returns the claims of each of these pods."""


@dataclass(frozen=True, slots=True)
class PodShape:
    """Equal pods of a gang."""

    count: int
    least: int
    ask: Ask
    spec: PodSpec
    meta: Meta
    name: str = ""
    unclear: str = ""  # the unknown part of its resource claims


def shapes_of(gang: Gang, claimed_by: ClaimedBy) -> list[PodShape]:
    """The kinds of pods of a gang with their numbers: of its Workload, else its Job, else its pods."""
    if gang.workload is not None:
        found, admission = [], gang.workload.status.admission
        sets = admission.pod_set_assignments or () if admission is not None else ()
        admitted = {each.name: each.count for each in sets}
        for each in gang.workload.spec.pod_sets or ():
            got = admitted.get(each.name)
            count = each.count if got is None else min(got, each.count)  # fewer by partial admission
            pod, least = each.template.spec, min(count, each.min_count if each.min_count is not None else each.count)
            claimed = claimed_by(gang.namespace, pod, count)
            ask = parts_of(each.template.metadata).beside(ask_of(pod).beside(claimed), bound=False)
            found.append(PodShape(count, least, ask, pod, each.template.metadata, each.name, claimed.problem))
        return found
    if gang.job is not None:
        spec = gang.job.spec
        wide = spec.parallelism if spec.parallelism is not None else 1
        count = min(wide, spec.completions) if spec.completions is not None else wide
        claimed = claimed_by(gang.namespace, spec.template.spec, count)
        pods, meta = unplaced(gang.job), spec.template.metadata
        ask = parts_of(meta).beside(ask_of(spec.template.spec).beside(claimed), bound=False)
        return [PodShape(count, count, ask, pods, meta, unclear=claimed.problem)]
    return shapes_of_pods(gang)


def check_size(shapes: Sequence[PodShape]) -> None:
    """Raise `ValueError` for an unreadable size of a gang, or one beyond any fleet."""
    problem = next((each.ask.problem for each in shapes if each.ask.problem), "")
    if problem:
        raise ValueError(problem)
    units = sum(max(each.count, each.least) * each.ask.units for each in shapes)
    pods = sum(each.count for each in shapes)
    if max(units, pods) > MOST_GPUS:
        raise ValueError(f"it asks for {units} GPUs in {pods} pods; at most {MOST_GPUS} are read")


def shapes_of_pods(gang: Gang) -> list[PodShape]:
    """The kinds of the present pods, in their stated number."""
    by_ask: dict[Ask, list[PodFacts]] = {}
    for each in gang.pods.values():
        by_ask.setdefault(each.ask, []).append(each)
    shapes = [
        PodShape(len(found), len(found), ask, found[0].pod.spec, found[0].pod.metadata) for ask, found in by_ask.items()
    ]
    stated = _stated_members(gang)
    if len(shapes) == 1 and stated > shapes[0].count:
        shapes = [PodShape(stated, stated, shapes[0].ask, shapes[0].spec, shapes[0].meta)]
    return shapes


def _stated_members(gang: Gang) -> int:
    """Number of pods stated by a group on its pods; 0 for none."""
    for each in gang.pods.values():
        text = each.pod.metadata.note(KUEUE_TOTAL) or each.pod.metadata.note(SET_SIZE)
        if text.isdecimal() and len(text) < 7:
            return int(text)
    return 0


def unclear_claims(gang: Gang, shapes: Sequence[PodShape]) -> tuple[tuple[str, str], ...]:
    """The unknown part of its resource claims: that is not guessed."""
    found = [each.unclear for each in shapes if each.unclear]
    found += [each.claimed.problem for each in gang.pods.values() if each.claimed.problem]
    return tuple(("resourceclaims", f"{each}; it is left alone") for each in dict.fromkeys(found)) if found else ()
