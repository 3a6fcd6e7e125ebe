"""Pairs that were found to disturb each other are kept apart, for a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopilot.core.model.kinds import kind_of
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.neighbours import NeighboursMemory, PairRecord
from autopilot.core.model.policy.bounds import DAY_S
from autopilot.core.planning.pairs import harm_ratio, kept_apart, pair_key, with_result
from autopilot.records.journal.decisions import memory_bytes, read_memory
from autopilot.records.memory import memory_text, read_memory_text
from tests.kits.core_world import decide, started
from tests.kits.sharing_world import SHARING, SLICED, book, known, seen, shared, sits

NOW_S = 100 * DAY_S
UNKNOWN = float("nan")


def tried(*results: bool) -> PairRecord:
    """The record after these results, all of them now."""
    record: PairRecord | None = None
    for harmful in results:
        record = with_result(record, NOW_S, harmful=harmful)
    assert record is not None
    return record


@pytest.mark.parametrize(
    ("results", "rate", "days", "apart"),
    [
        ([True], 0.0, 0, False),  # one may be chance
        ([True] * 2, 1.0, 0, True),
        ([True] * 2, UNKNOWN, 0, True),
        ([True] * 2, 1.0, 30, False),  # forgotten
        ([True] * 2 + [False] * 3, 0.9, 0, False),
        ([True] * 4 + [False] * 3, 0.9, 0, True),
        ([False] * 3, 0.0, 0, False),
    ],
)
def test_two_confirmations_keep_a_pair_apart_until_they_fade(
    results: list[bool], rate: float, days: float, apart: bool
) -> None:
    """A Beta count with half-life, on what the rule says."""
    memory = NeighboursMemory({"pair": tried(*results)})
    assert (kept_apart(memory, "pair", rate, NOW_S + days * DAY_S) is not None) == apart
    assert kept_apart(memory, "other", rate, NOW_S) is None


def test_the_counts_are_halved_every_fourteen_days() -> None:
    """Also before the next one is added, so that old and new ones weigh by their age."""
    record = with_result(tried(True, True), NOW_S + 14 * DAY_S, harmful=False)
    assert (record.harmful, record.harmless, record.confirmed) == (1.0, 1.0, 2)
    assert harm_ratio(record, 0.8, NOW_S + 28 * DAY_S) == pytest.approx((0.2 + 0.5) / 2.0)


@pytest.mark.parametrize(("victim", "suspect"), [("ann", "ben"), ("ben", "ann")])
def test_a_remembered_pair_gets_no_seat_on_one_gpu(victim: str, suspect: str) -> None:
    """In either order of arrival; a new image begins anew; the memory file has the pair."""

    def starts_with(image: str) -> bool:
        snap = shared("1x1", [sits("ann", [0]), book("ben", image=image)], {0: SLICED})
        kinds = {name: kind_of(before, row) for row, name in enumerate(before.workloads.id.tolist())}
        model = snap.names.gpu_models[0]
        pairs = {pair_key(kinds[victim], kinds[suspect], "time-slicing", model): tried(True, True)}
        memory = replace(known(snap, NOW_S), neighbours=NeighboursMemory(pairs))
        assert read_memory_text(memory_text(memory), "m").neighbours == memory.neighbours
        step = decide(seen(snap, NOW_S), SHARING, memory)
        (why,) = [{each.name: each.value for each in note.facts} for note in step.decision.notes] or [{}]
        assert bool(why.get("share_pair")) != bool(started(step))
        return bool(started(step))

    before = shared("1x1", [sits("ann", [0]), book("ben", image="one")], {0: SLICED})
    assert not starts_with("one")
    assert starts_with("two")


def test_a_memory_of_before_has_none() -> None:
    """Its journal is written as it was."""
    old = memory_bytes(replace(ControllerMemory(neighbours=NeighboursMemory({"pair": tried(True)})), schema=5))
    assert b"neighbours" not in old
    assert read_memory(old).neighbours == NeighboursMemory()
    assert memory_bytes(read_memory(old)) == old
