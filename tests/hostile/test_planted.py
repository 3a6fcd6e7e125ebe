"""Defects put back on purpose: the hostile world finds each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from autopilot.core.decision import build, intake_facts, sending, underway
from autopilot.core.effects import lifecycle
from autopilot.core.geometry import cuttable, regeometry
from autopilot.core.geometry import guard as regeometry_guard
from autopilot.core.guards import mode
from autopilot.core.idle import idle_work
from autopilot.core.intake import sight
from autopilot.core.model import approvals
from autopilot.core.model.memory.starts import PipelinedStart
from autopilot.core.model.snapshot import ClusterSnapshot
from tests.hostile.cut_machine import HostileCuts
from tests.hostile.machine import Hostile
from tests.hostile.ports import Sight

SEEDS = 6
RUNS = 25
"""A planted defect must show within this number of seeds and of runs. With fewer runs of each there are more seeds."""


def found(words: str, first: int, runs: int) -> str:
    """The first violation that names one of `words` ("|" between them), from seed `first` on; "" when there is none."""
    rules = settings(
        max_examples=runs,
        stateful_step_count=50,
        deadline=None,
        database=None,
        print_blob=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for number in range(first, first + SEEDS * RUNS // runs):
        try:
            run_state_machine_as_test(seed(number)(Hostile), settings=rules)
        except Exception as error:  # noqa: BLE001 - any way in which it shows
            if any(word in str(error) for word in words.split("|")):
                return str(error)
    return ""


def sees_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick with a partial or missing view is taken for a complete one."""
    look = intake_facts.look  # type: ignore[attr-defined]
    monkeypatch.setattr(intake_facts, "look", lambda *given: replace(look(*given), blind=""))


def believes_any_shrinkage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that lost most of its objects is believed at once."""
    monkeypatch.setattr(sight, "_suspicion", lambda *_: "")


def sends_again_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent again, and what starts late, is asked nothing."""
    monkeypatch.setattr(sending.Sender, "_ask", lambda *_: None)


def approves_any_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """An approval says what happens to which object, and nothing else."""
    monkeypatch.setattr(mode, "outside", lambda *_: None)


def approves_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """An approval does not expire."""
    real = approvals.outside
    monkeypatch.setattr(mode, "outside", lambda given, *more: real(replace(given, given_s=inf), *more))


@pytest.mark.parametrize(
    ("plant", "words", "first", "runs"),  # the seed that is tried first shows the defect at once
    [
        (believes_any_shrinkage, "after the list shrank", 1, RUNS),
        (sends_again_unchecked, "the mode of|opted out|protected|not preemptible|is over", 29, 3),
        (approves_any_state, "approved for another object|than was approved", 0, RUNS),
        (approves_for_ever, "expired|more than was approved|less than was approved", 13, RUNS),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
@pytest.mark.soak
def test_a_planted_defect_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], words: str, first: int, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search finds each as the violation that it is; tests/mutants/ has each for `make test`."""
    plant(monkeypatch)
    assert found(words, first, runs)


TICKS = 20
"""A story shows its defect within this number of ticks."""


def cuts_what_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instances that hold work count as idle, in the search and in the guard."""
    books = cuttable.books_of

    def nothing_is_used(ctx: Any) -> Any:
        found = books(ctx)
        return replace(found, used=np.zeros_like(found.used))

    monkeypatch.setattr(regeometry, "books_of", nothing_is_used)
    monkeypatch.setattr(regeometry_guard, "geometry_in_use", lambda *_: ())


def cuts_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes of the last hour do not count, and a geometry does not last."""
    for module in (regeometry, regeometry_guard):
        monkeypatch.setattr(module, "changes_in_hour", lambda *_: 0)


def suspends_without_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle work is due as soon as it is seen."""
    monkeypatch.setattr(idle_work, "may_take", lambda _ctx, rung: not rung.advice)


def forgets_who_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A victim is gone when its eviction is counted: its start is given up, and its GPUs leave for nobody."""
    follow = underway.follow_pipelined  # type: ignore[attr-defined]

    def counted(snapshot: ClusterSnapshot, row: int | None, incarnation: int, *_: float) -> bool:
        return row is None or int(snapshot.workloads.incarnation[row]) == incarnation

    def gives_up(starts: tuple[PipelinedStart, ...], whatif: Any, names: Any, *rest: Any, **more: Any) -> Any:
        def stands(start: PipelinedStart) -> bool:
            rows = [(names.workload.get(each.uid), each.incarnation) for each in start.victims]
            return all(counted(whatif.snapshot, *each) for each in rows)

        found = follow(tuple(filter(stands, starts)), whatif, names, *rest, **more)
        return replace(found, given_up=(*found.given_up, *(each for each in starts if not stands(each))))

    monkeypatch.setattr(underway, "follow_pipelined", gives_up)
    monkeypatch.setattr(lifecycle, "leaves_still", counted)
    monkeypatch.setattr(build, "leaving_rows", lambda *_: {})


def lists_a_third(machine: HostileCuts) -> None:
    """Work holds all whole GPUs, some waits, and the list of work lacks two thirds of it."""
    for number in range(26):
        machine.cluster.submit(f"w{number}", gpus=2, queue=1)
    machine.tick_after(60.0)
    machine.ports.work_sight = Sight.LIE


def requests_large_instances(machine: HostileCuts) -> None:
    """The small instances are all in use, and somebody asks for a whole GPU; later for two more."""
    for number in range(28):
        machine.cluster.submit(f"s{number}", gpus=1, mig_profile=0, queue=1)
    machine.tick_after(60.0)
    machine.cluster.submit("large", gpus=1, mig_profile=3, queue=1)


def requests_one_after_the_other(machine: HostileCuts) -> None:
    """Three requests for whole GPUs, with nothing else on the GPUs."""
    for number in range(3):
        machine.cluster.submit(f"large{number}", gpus=1, mig_profile=3, queue=1)
        machine.tick_after(130.0)


def rests_while_others_wait(machine: HostileCuts) -> None:
    """Work holds all whole GPUs and rests, and other work waits."""
    machine.cluster.submit("rests", gpus=12, queue=1, checkpoint_on_request=True, user="ann")
    machine.tick_after(60.0)
    machine.cluster.gangs["rests"].hangs = True
    machine.cluster.submit("waits", gpus=4, queue=1, tenant=1)


def asks_for_its_guarantee(machine: Hostile) -> None:
    """Queue b holds all, evictions are counted before they end, and work of queue a comes for a part of its half."""
    for number in range(4):
        machine.cluster.submit(f"lent{number}", gpus=4, queue=2, tenant=1)
    machine.tick_after(60.0)
    machine.cluster.slow = machine.cluster.counts_first = True
    machine.cluster.submit("owed", gpus=4, queue=1)


@pytest.mark.parametrize("planted", [True, False])
def test_a_start_stops_no_more_than_it_needs(monkeypatch: pytest.MonkeyPatch, *, planted: bool) -> None:
    """One gang leaves for it, however long that takes; a controller that forgets who leaves stops another one."""
    if planted:
        forgets_who_leaves(monkeypatch)
    machine = Hostile()
    asks_for_its_guarantee(machine)
    found: list[str] = []
    for _ in range(TICKS):
        machine.tick_after(40.0)
        found += machine.watch.problems()
    stopped = [sent for sent in machine.ports.sent if sent.instruction.kind == "evict"]
    assert any("that it is for leave without it" in each for each in found) == planted, found
    assert planted or (len(stopped), found) == (1, [])


@pytest.mark.parametrize(
    ("plant", "begin", "words"),
    [
        (sees_everything, lists_a_third, "are held by"),
        (cuts_what_is_in_use, requests_large_instances, "in use"),
        (cuts_without_a_limit, requests_one_after_the_other, "changes of geometry within the hour"),
        (suspends_without_a_notice, rests_while_others_wait, "notice"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
@pytest.mark.parametrize("planted", [True, False])
def test_a_planted_defect_shows_in_its_story(
    plant: Callable[[pytest.MonkeyPatch], None],
    begin: Callable[[HostileCuts], None],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    planted: bool,
) -> None:
    """Each of them shows as the violation that it is; without it, the same story is lawful, and something happens."""
    if planted:
        plant(monkeypatch)
    machine = HostileCuts()
    begin(machine)
    found: list[str] = []
    for _ in range(TICKS):
        machine.tick_after(120.0)
        found += machine.watch.problems()
        if found:
            break
    assert any(words in each for each in found) == planted, found
    assert bool(found) == planted
    actions = {sent.memory.effects.in_flight[sent.instruction.id].action for sent in machine.ports.sent}
    assert planted or begin in (lists_a_third, requests_large_instances) or actions & {"regeometry", "suspend_idle"}
