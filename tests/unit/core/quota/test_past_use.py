"""Past use of queues: an exact decay whatever ticks lie between, and what it does to weights."""

from __future__ import annotations

from math import inf, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.use import UseMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.snapshot import ClusterSnapshot, State
from autopilot.core.quota.past_use import LEAST_RATIO, corrected_weights, fades_in_s, remember_parts, remember_use
from tests.kits.core_world import AUTO, Item, holds, observe, queue_tree, snapshot, waits, with_policy
from tests.kits.ticking_world import EAGER, Ticking, tenants
from tests.kits.ticks import follow, planned

HALF_S = 7200.0
REVIEW_S = 300.0
POLICY = with_policy(AUTO, tenancy={"usage_half_life_s": HALF_S, "usage_weight": 1.0})
TREE = tenants(("a", 0, 0), ("b", 0, 0))


def held(a: int, b: int = 0) -> ClusterSnapshot:
    """Two queues that hold the given GPUs."""
    work = [holds(name, gpus, queue=queue) for name, gpus, queue in (("x", a, 1), ("y", b, 2)) if gpus]
    return snapshot("2x8", work, queues=TREE)


def seen(memory: ControllerMemory, what: ClusterSnapshot, now_s: float, policy: Policy = POLICY) -> ControllerMemory:
    """Memory after a tick at that time."""
    return follow(remember_use, memory, observe(what, now_s), policy, review_s=now_s // REVIEW_S * REVIEW_S)


def test_an_hour_of_use_is_its_integral_and_halves_with_time() -> None:
    """Eight GPUs for one half-life count 8 x half-life / (2 ln 2); half of that another half-life later."""
    memory = seen(seen(ControllerMemory(), held(8), 0.0), held(0), HALF_S)
    assert memory.use.usage_gpu_s["a"] == pytest.approx(8 * HALF_S / (2 * log(2)))
    later = seen(memory, held(0), 2 * HALF_S)
    assert later.use.standing_use_gpu_s["a"] == pytest.approx(4 * HALF_S / (2 * log(2)))
    assert "b" not in later.use.usage_gpu_s


def test_weights_change_at_the_start_of_a_review_and_not_before() -> None:
    """Between two reviews the standing use is the same to the last bit, though use itself goes on."""
    memory = seen(ControllerMemory(), held(8), 10.0)
    assert memory.use.standing_use_gpu_s == {}
    memory = seen(memory, held(8), 299.0)
    assert memory.use.standing_use_gpu_s == {}
    at_300 = seen(memory, held(8), 300.0)
    assert at_300.use.standing_use_gpu_s["a"] == pytest.approx(8 * 290.0, rel=0.02)
    late = seen(at_300, held(2, 5), 450.0)
    assert late.use.standing_use_gpu_s == at_300.use.standing_use_gpu_s
    assert seen(late, held(2, 5), 599.0).use.standing_use_gpu_s == at_300.use.standing_use_gpu_s
    assert seen(memory, held(8), 450.0).use.standing_use_gpu_s == at_300.use.standing_use_gpu_s
    assert set(seen(late, held(2, 5), 600.0).use.standing_use_gpu_s) == {"a", "b"}


def test_a_share_is_its_part_and_what_has_ended_holds_nothing() -> None:
    """Two shares of 300 thousandths are .6 GPUs; a finished gang's entries do not count; one that is leaving holds
    on.
    """
    work: list[Item] = [
        holds("s", 2, on=[0, 0], gpu_milli=300, queue=1),
        holds("e", 4, queue=2, state=State.SUCCEEDED),
        holds("c", 3, queue=2, state=State.CHECKPOINTING),
    ]
    memory = seen(ControllerMemory(), snapshot("2x8", work, queues=TREE), 0.0)
    assert memory.use.held_gpus == {"a": 0.6, "b": 3.0}


def test_instances_count_as_in_the_quota_books() -> None:
    """An instance is one entry, whatever its profile, or its part where the policy says so."""
    work = [holds("m", 2, on=[0, 1], mig_profile=0, queue=1)]
    snap = snapshot("1x4", work, queues=TREE, cuts={3: [("1g.10gb", 0), ("1g.10gb", 1)]})
    assert seen(ControllerMemory(), snap, 0.0).use.held_gpus == {"a": 2.0}
    parts = with_policy(POLICY, tenancy={"instance_parts": True})
    assert seen(ControllerMemory(), snap, 0.0, parts).use.held_gpus == pytest.approx({"a": 2 / 7})


def test_a_queue_that_is_gone_is_forgotten_in_the_end() -> None:
    """Names leave memory when their use has decayed to nothing; memory does not grow with time."""
    memory = seen(seen(ControllerMemory(), held(8), 0.0), held(0, 1), 60.0)
    assert set(memory.use.usage_gpu_s) == {"a"}
    memory = seen(memory, held(0), 40 * HALF_S)
    assert set(memory.use.usage_gpu_s) == {"b"}
    assert memory.use.held_gpus == {}


def test_short_holdings_add_up() -> None:
    """A GPU that changes hands every half millisecond is counted: nothing is dropped while it is held."""
    memory, now_s = ControllerMemory(), 0.0
    for step in range(2000):
        memory = seen(memory, held(1 + step % 2), now_s)
        now_s += 0.0005
    assert memory.use.usage_gpu_s["a"] == pytest.approx(1.5, rel=0.01)


@pytest.mark.parametrize("policy", [with_policy(POLICY, tenancy={"usage_half_life_s": 0.0}), POLICY])
def test_where_the_past_does_not_count_nothing_is_kept(policy: Policy) -> None:
    """Switched off, or with a single queue, memory is empty and stays so; what it had is gone when it is on again."""
    tree = TREE if policy is not POLICY else queue_tree(("only", 0, -1))
    snap = snapshot("2x8", [holds("x", 8, queue=1)], queues=tree)
    assert seen(ControllerMemory(), snap, 0.0, policy) == ControllerMemory()
    before = seen(seen(ControllerMemory(), held(8), 0.0), held(8), 1000.0)
    after = seen(before, snap, 2000.0, policy)
    assert after == ControllerMemory()
    assert corrected_weights(before, tree, with_policy(POLICY, tenancy={"usage_half_life_s": 0.0})) is None
    again = seen(after, held(8), 90_000.0)
    assert again.use.usage_gpu_s.get("a", 0.0) == 0.0


changes = st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=6)


@settings(max_examples=100)
@given(changes=changes, extra=st.lists(st.integers(1, 12_000).map(lambda n: n / 1.7), max_size=20))
def test_ticks_in_between_leave_no_trace(changes: list[tuple[int, int, int]], extra: list[float]) -> None:
    """Memory after the same changes of holdings is the same to the last bit, however many other ticks there were."""
    events: list[tuple[float, ClusterSnapshot]] = []
    now_s = 0.0
    for length_s, a, b in changes:
        events.append((now_s, held(a, b)))
        now_s += length_s

    def run(more: list[float]) -> ControllerMemory:
        memory = ControllerMemory()
        for at_s in sorted({at for at, _ in events} | {at for at in more if at < now_s} | {now_s}):
            current = [what for at, what in events if at <= at_s][-1]
            memory = seen(memory, current, at_s)
        return memory

    calm, restless = run([]), run(extra)
    assert restless.use.usage_gpu_s == calm.use.usage_gpu_s
    assert restless.use.standing_use_gpu_s == calm.use.standing_use_gpu_s
    assert restless.use.usage_at_s == calm.use.usage_at_s


@settings(max_examples=100)
@given(changes=changes)
def test_the_sum_is_what_simple_accounting_gives(changes: list[tuple[int, int, int]]) -> None:
    """Use equals the sum over all holdings of GPUs x time, each decayed since."""
    memory, now_s, spans = ControllerMemory(), 0.0, []
    for length_s, a, b in changes:
        memory = seen(memory, held(a, b), now_s)
        spans.append((now_s, now_s + length_s, a, b))
        now_s += length_s
    memory = seen(memory, held(0) if spans[-1][2:] != (0, 0) else held(1), now_s)
    for name, place in (("a", 2), ("b", 3)):
        expected = sum(
            span[place] * HALF_S / log(2) * (0.5 ** ((now_s - span[1]) / HALF_S) - 0.5 ** ((now_s - span[0]) / HALF_S))
            for span in spans
        )
        assert memory.use.usage_gpu_s.get(name, 0.0) == pytest.approx(expected, abs=2e-2, rel=1e-9)


def parted(memory: ControllerMemory, gpus: float, now_s: float) -> ControllerMemory:
    """Memory after a plan in which a queue has this part of the cluster."""
    return remember_parts(memory, planned(observe(held(0), now_s), POLICY, part_gpus={"a": gpus}))


def test_the_part_of_a_queue_is_summed_like_its_use() -> None:
    """Four GPUs for one half-life count 4 x half-life / (2 ln 2), whatever it held; the review sees it at its start."""
    memory = parted(seen(ControllerMemory(), held(8), 0.0), 4.0, 0.0)
    assert memory.use.standing_part_gpu_s == {}
    later = seen(memory, held(0), HALF_S + 100.0)
    assert later.use.standing_part_gpu_s["a"] == pytest.approx(4 * HALF_S / (2 * log(2)))
    assert parted(later, 4.0, HALF_S + 150.0) is later
    changed = parted(later, 2.0, HALF_S + 200.0)
    assert changed.use.part_gpu_s["a"] > later.use.standing_part_gpu_s["a"]
    assert (
        seen(changed, held(0), HALF_S + 200.0, with_policy(POLICY, tenancy={"usage_half_life_s": 0.0})).use.part_gpu_s
        == {}
    )


# --- weights ----------------------------------------------------------------------------------------


def used(**gpu_s: float) -> ControllerMemory:
    """Memory with this standing use."""
    return ControllerMemory(use=UseMemory(standing_use_gpu_s=gpu_s))


def test_who_used_more_than_its_part_weighs_less() -> None:
    """Equal weights, three quarters of the use: 1/2 + (1/2 - 3/4) = 1/4 against 3/4."""
    weights = corrected_weights(used(a=30.0, b=10.0), TREE, POLICY)
    assert weights is not None
    np.testing.assert_allclose(weights[1:], [0.25, 0.75])


def test_the_weight_never_falls_below_a_tenth() -> None:
    """A queue that used everything keeps a tenth of its part; a queue that used nothing weighs 1/2 + 1/2."""
    weights = corrected_weights(used(a=30.0), TREE, POLICY)
    assert weights is not None
    np.testing.assert_allclose(weights[1:], [LEAST_RATIO / 2, 1.0])


def test_use_of_teams_counts_for_their_organisation() -> None:
    """The correction is among siblings, on every level; use of a team weighs down its organisation too."""
    tree = tenants(("x", 0, 0), ("y", 0, 0), ("x1", 1, 0), ("x2", 1, 0), weight={"y": 3.0})
    weights = corrected_weights(used(x1=50.0, y=50.0), tree, POLICY)
    assert weights is not None
    np.testing.assert_allclose(weights[1:], [0.025, 1.0, 0.05, 1.0])


def test_a_weight_of_zero_stays_zero_and_a_strength_of_zero_changes_nothing() -> None:
    """Borrowing that a tree forbids is not allowed by having used nothing."""
    weights = corrected_weights(used(b=10.0), tenants(("a", 0, 0), ("b", 0, 0), weight={"a": 0.0}), POLICY)
    assert weights is not None
    assert weights[1] == 0.0
    assert corrected_weights(used(a=1.0), TREE, with_policy(POLICY, tenancy={"usage_weight": 0.0})) is None
    assert corrected_weights(ControllerMemory(), TREE, POLICY) is None


def test_work_that_waits_uses_nothing() -> None:
    """Only what is held counts."""
    snap = snapshot("2x8", [waits("w", 8, queue=1)], queues=TREE)
    assert seen(seen(ControllerMemory(), snap, 0.0), snap, 5000.0).use.standing_use_gpu_s == {}


@pytest.mark.parametrize("queues_that_wait", [(2,), (1, 2)])
def test_what_is_held_now_is_a_timer_for_whoever_waits(queues_that_wait: tuple[int, ...]) -> None:
    """The first holding is past use at the next review: that wakes, and there the fair shares are others.

    With equal shares `w` may not displace; once all the past is the other queue's, it may.
    """
    policy = with_policy(EAGER, tenancy={"usage_half_life_s": HALF_S, "usage_weight": 1.0}, order={"max_wait_s": 1e6})
    work = [holds("v", 4, queue=1), holds("x", 4, queue=1)]
    work += [waits(f"w{queue}", 6, queue=queue, gpus_per_member=6) for queue in queues_that_wait]
    play = Ticking("1x8", work, policy, queues=TREE)
    step = play.tick(10.0)
    assert not play.memory.use.usage_gpu_s
    assert not step.instructions
    assert step.wake_at_s == REVIEW_S
    play.tick(REVIEW_S)
    assert play.leaving() == ["v", "x"]


def test_without_past_use_or_weight_for_it_nothing_wakes() -> None:
    """No timer where the past does not count."""
    policy = with_policy(EAGER, tenancy={"usage_weight": 0.0}, order={"max_wait_s": 1e6})
    play = Ticking("1x8", [holds("v", 8, queue=1), waits("w", 6, queue=2)], policy, queues=TREE)
    assert play.tick(10.0).wake_at_s > REVIEW_S


def test_an_excess_of_past_use_is_gone_when_its_decay_says() -> None:
    """1,000,000 GPU-s above, and two GPUs fewer held than its part; with its part or more it never is."""
    half_life_s = 86_400.0
    kept = 0.5 ** (fades_in_s(1e6, -2.0, half_life_s) / half_life_s)
    assert 1e6 * kept - 2.0 * (1.0 - kept) * half_life_s / log(2.0) == pytest.approx(0.0, abs=1e-3)
    assert fades_in_s(1e6, 0.0, half_life_s) == inf
