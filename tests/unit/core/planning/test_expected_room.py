"""Nodes that narrow work leaves to wide gangs which are expected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopilot.core.decision.build import build_context
from autopilot.core.effects.admit import AdmitChange
from autopilot.core.model.forecast import ExpectedMix, MixKind
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Mode, Policy
from autopilot.core.model.snapshot import Topology
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.planning.expected_room import LIKELY_ARRIVALS, KeptClear, kept_clear
from tests.kits.core_world import Item, decide, holds, proposals, started, waits, with_policy
from tests.kits.expected_world import HOUR_S, ISLAND, NOW_S, PATIENT, SAVES, island_expected, mix_of

LONG = holds("long", 4, range(4), gpus_per_member=4, **SAVES)
SOON = holds("soon", 6, range(16, 22), gpus_per_member=6, **SAVES)
ENDS_S = {"long": 100 * HOUR_S, "soon": NOW_S + 600.0}
"""`soon` fills its node more, and leaves its island within ten minutes: that island is kept clear."""


def started_on(*work: Item, policy: Policy = PATIENT, mix: ExpectedMix | None = None) -> set[str]:
    """Nodes on which the gang `new` starts."""
    ends_s = {**ENDS_S, "full": 100 * HOUR_S, "new": HOUR_S}
    return set(started(decide(island_expected(work, total_s=ends_s, mix=mix), policy))["new"])


def kept_for(*kinds: MixKind) -> KeptClear:
    """What is kept clear for gangs of these kinds."""
    seen = island_expected((LONG, SOON), total_s=ENDS_S, mix=mix_of(*kinds))
    return kept_clear(build_context(seen, PATIENT, ControllerMemory(), WhatIf(seen.snapshot), frozenset()))


def test_narrow_work_starts_beside_the_island_that_is_kept() -> None:
    """Not on the fullest node, which would be the best fit."""
    assert started_on(LONG, SOON, waits("new", 1)) == {"node-0"}


def test_nothing_is_kept_unless_moves_ahead_act() -> None:
    """In the default policy, and where a person has to approve each move."""
    for mode in (Mode.OFF, Mode.RECOMMEND, Mode.APPROVE):
        policy = with_policy(PATIENT, modes={"defragment_ahead": mode})
        assert started_on(LONG, SOON, waits("new", 1), policy=policy) == {"node-2"}


def test_nothing_waits_for_the_room_that_is_kept() -> None:
    """Where the rest is full, narrow work starts on the kept island."""
    full = holds("full", 16, range(16), **SAVES)
    assert started_on(full, SOON, waits("new", 1)) == {"node-2"}


def test_the_explanation_names_what_is_kept() -> None:
    """How many nodes, and that a gang had to use them all the same."""
    for work, words in (((LONG,), ""), ((holds("full", 16, range(16), **SAVES),), "; it fits on no others")):
        seen = island_expected((*work, SOON, waits("new", 1)), total_s={**ENDS_S, "full": 100 * HOUR_S, "new": HOUR_S})
        change = proposals(decide(seen, PATIENT))["new"].change
        assert isinstance(change, AdmitChange)
        terms = {each.name: each for each in change.score_terms}
        assert terms["kept_clear"].value == 2
        assert terms["kept_clear"].unit == f"nodes left to wider gangs that are expected{words}"
        assert 0.0 < float(terms["fill"].value) <= 10.0, "the share of the node in use, without what the node costs"


def test_the_expected_gang_takes_its_room() -> None:
    """A gang as wide as the expected one is not sent elsewhere."""
    wide = waits("new", 16, gpus_per_member=8, topology=int(Topology.ISLAND))
    assert started_on(LONG, wide) == {"node-2", "node-3"}
    node = mix_of(MixKind((), 8, 8))
    assert started_on(LONG, SOON, waits("new", 8, gpus_per_member=8), mix=node) == {"node-1"}
    assert started_on(LONG, SOON, waits("new", 7, gpus_per_member=7), mix=node) == {"node-3"}


def test_only_what_is_likely_and_fresh_counts() -> None:
    """Fewer than ln 2 arrivals within `ahead_s`, a narrow kind, and a mix without a forecast keep nothing."""
    rare = mix_of(ISLAND, each_hour=0.9 * LIKELY_ARRIVALS / 4)
    assert started_on(LONG, SOON, waits("new", 1), mix=rare) == {"node-2"}
    narrow = mix_of(MixKind((), 4, 4))
    assert started_on(LONG, SOON, waits("new", 1), mix=narrow) == {"node-2"}
    old = mix_of(ISLAND, made_s=NOW_S - 3 * HOUR_S)
    assert started_on(LONG, SOON, waits("new", 1), mix=old) == {"node-2"}


def test_each_kind_has_nodes_of_its_own() -> None:
    """The kind with most expected GPUs first; one that finds no nodes left has none."""
    found = kept_for(ISLAND, replace(ISLAND, topology=0), MixKind((), 8, 8))
    assert found.gpus.tolist() == [16, 16, 16, 16]
    assert len(found.words) == 2
    assert kept_for(MixKind((), 8, 8)).gpus.tolist() == [0, 8, 0, 0], "an idle node, the first of them"


def test_a_gang_that_fits_nowhere_keeps_nothing() -> None:
    """Wider than any island, or for a GPU model that the cluster lacks."""
    for kind in (MixKind((), 24, 8, topology=int(Topology.ISLAND)), replace(ISLAND, gpu_models=("B200",))):
        found = kept_for(kind)
        assert not np.any(found.gpus)
        assert found.words == ()
