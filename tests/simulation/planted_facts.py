"""Streams of facts for the checkers: a bug in each, and the nearest that is right."""

from __future__ import annotations

from simulator.world.facts import (
    Decided,
    Fact,
    GpuChanged,
    NodeChanged,
    Notified,
    Recut,
    Recutting,
    Scaled,
    Submitted,
    Why,
)
from tests.simulation.fact_builders import evicting, floored, recut, resized, started, stopped
from tests.simulation.planted_ceilings import CEILINGS, CEILINGS_FINE
from tests.simulation.planted_scopes import SCOPES, SCOPES_FINE
from tests.simulation.planted_sharing import SHARING, SHARING_FINE
from tests.simulation.planted_takings import TAKINGS, TAKINGS_FINE

THREES = (("3g.40gb", 0), ("3g.40gb", 4))
SEVEN = (("7g.80gb", 0),)
SUBMITS = [Submitted(0.0, job) for job in range(12)]


def room(job: int, at_s: float, name: str, *between: Fact, contract: bool = False) -> list[Fact]:
    """A job is evicted, and a replica of service 0 starts in its place."""
    evicted = evicting(job, at_s, contract, f"1/pipeline-{name}-0123abcd/evict-x")
    return [evicted, *between, started(4, [0], at_s + 10.0, effect=f"2/pipeline-{name}-0123abcd/x")]


SERVED: list[Fact] = [Scaled(5.0, 0, 1, 0, 0), started(0, [0])]
ROOM = [*SERVED, *room(0, 100.0, "a/b")]
LACKED, SERVES = [Scaled(99.0, 0, 2, 2, 0)], Scaled(105.0, 0, 2, 0, 0)
BACK = started(0, [0], 3000.0)
# the floor lapses at 1,000 s, so the fall at 2,100 s returns no room; then room is made again
LAPSED = [*ROOM, floored(4, 20.0), floored(4, 2000.0, 3000.0), floored(2, 2100.0, 3000.0), started(1, [1, 2])]
LAPSED += [*room(1, 2200.0, "c"), floored(4, 2300.0, 4000.0)]

PLANTED: list[tuple[str, str, list[Fact]]] = [
    ("capacity", "thousandths", [started(0, [4]), started(1, [4, 5])]),
    ("capacity", "thousandths", [started(6, [4], milli=600), started(0, [4])]),
    ("capacity", "already holds GPUs", [started(0, [4]), started(0, [5])]),
    ("capacity", "without having started", [stopped(0)]),
    (
        "capacity",
        "is held by job job-7",
        [started(7, [24], instances=(0,)), started(10, [24], instances=(0,))],
    ),
    (
        "capacity",
        "was destroyed under",
        [started(7, [24], instances=(0,)), Recut(20.0, 24, ((1, "3g.40gb", 4),))],
    ),
    ("capacity", "was partitioned while", [started(0, [3]), Recut(20.0, 3, ())]),
    ("capacity", "thousandths", [started(5, range(8)), started(0, [8]), *resized(5, range(16))]),
    ("geometry", "overlaps", [Recut(5.0, 24, ((0, "3g.40gb", 4), (1, "2g.20gb", 4)))]),
    ("geometry", "not a legal placement", [Recut(5.0, 24, ((0, "3g.40gb", 2),))]),
    ("geometry", "more instances", [Recut(5.0, 24, tuple((k, "1g.10gb+me", k) for k in range(2)))]),
    ("geometry", "has no MIG", [Recut(5.0, 25, ((0, "1g.10gb", 0),))]),
    ("geometry", "is not a 3g.40gb", [started(7, [24], instances=(9,))]),
    ("geometry", "a second change", [Recutting(5.0 + k, 24, True, THREES, SEVEN, "") for k in range(2)]),
    ("geometry", "never began", [Recutting(5.0, 24, False, SEVEN, THREES, "")]),
    ("geometry", "starts from a geometry that it does not have", [Recutting(5.0, 24, True, SEVEN, THREES, "")]),
    (
        "geometry",
        "ends with a geometry that it does not have",
        [Recutting(5.0, 24, True, THREES, SEVEN, ""), Recutting(65.0, 24, False, THREES, SEVEN, "")],
    ),
    *SCOPES,
    *TAKINGS,
    *CEILINGS,
    *SHARING,
    ("geometry", "whose geometry changes", [Recutting(5.0, 0, True, (), THREES, ""), started(0, [0])]),
    ("gangs", "15 of its 16", [started(2, range(15))]),
    ("gangs", "split over nodes", [started(2, [*range(4), *range(8, 20)])]),
    ("gangs", "may not use", [started(9, [0])]),
    ("gangs", "neither a growth nor a shrink", [started(5, range(8)), *resized(5, range(8, 16))]),
    ("gangs", "6 of its 16", [started(5, range(16)), *resized(5, range(6))]),
    ("order", "without waiting", [started(0, [0])]),
    (
        "order",
        "held nothing for 1 s",
        [*SUBMITS, started(5, range(8)), stopped(5, Why.RESIZE), started(5, range(16), 101.0)],
    ),
    ("order", "never continued", [*SUBMITS, started(5, range(8)), stopped(5, Why.RESIZE)]),
    ("order", "without waiting", [*SUBMITS, started(0, [0]), stopped(0, Why.END), started(0, [0], 200.0)]),
    ("order", "time went back", [*SUBMITS, started(0, [0], 50.0), started(1, [2, 3], 49.0)]),
    ("order", "before its submit", [Submitted(-1.0, 0)]),
    ("nodes", "which is unfit", [NodeChanged(5.0, 0, ready=True, cordoned=True), started(0, [0])]),
    ("nodes", "which is unfit", [NodeChanged(5.0, 0, ready=False, cordoned=False), started(0, [0])]),
    ("nodes", "which is broken", [GpuChanged(5.0, 0, healthy=False), started(0, [0])]),
    ("protected", "class is sheltered", [evicting(3, contract=True)]),
    ("protected", "not preemptible", [evicting(4)]),
    ("protected", "opted out", [evicting(5, contract=True)]),
    ("conservation", "not 5000 s", [started(0, [0]), stopped(0, Why.END, 5009.0)]),
    ("conservation", "more than it had done", [started(0, [0]), stopped(0, lost_s=91.0)]),
    ("conservation", "out of order", [started(0, [0]), stopped(0, ready_s=101.0)]),
    (
        "conservation",
        "keeps all progress",
        [started(5, range(8)), *resized(5, range(16), lost_s=5.0, milli=8000, full_milli=16000)],
    ),
    (
        "conservation",
        "of progress at full width",
        [started(5, range(8)), stopped(5, gain_s=46.0, milli=8000, full_milli=16000)],
    ),
    ("min-runtime", "after 899 s", [started(0, [0], 100.0), evicting(0, 999.0)]),
    ("budgets", "the cluster: 4 disruptions", [evicting(job, 2000.0 + job) for job in (0, 1, 2, 9)]),
    ("budgets", "the cluster: 4", [evicting(job, 2000.0 + job, why=Why.RECOVER) for job in (0, 1, 2, 9)]),
    ("protected", "not preemptible", [evicting(4, why=Why.RECOVER)]),
    ("budgets", "tenant a: 3 disruptions", [evicting(job, 2000.0 + job) for job in (0, 2, 4)]),
    ("budgets", "node main-000: 2", [started(0, [0]), started(1, [1, 2]), evicting(0), evicting(1, 5599.0)]),
    ("flapping", "came back 299 s", [started(0, [0]), evicting(0), started(0, [0], 2299.0)]),
    (
        "flapping",
        "came back 200 s",
        [started(0, [0]), evicting(0), started(0, [8], 2100.0), evicting(0, 2150.0), started(0, [0], 2200.0)],
    ),
    (
        "moves-ahead",
        "4999 s after a restart",
        [
            started(0, [0]),
            stopped(0),
            started(0, [1], 1000.0),
            evicting(0, 5999.0, why=Why.MOVE, ahead=True),
        ],
    ),
    ("moves-ahead", "in peak hours", [started(0, [0]), evicting(0, 7200.0, why=Why.MOVE, ahead=True)]),
    (
        "modes",
        "was evicted although defragment_ahead",
        [started(0, [0]), evicting(0, why=Why.MOVE, ahead=True)],
    ),
    ("preemption-rate", "again after 1799 s", [evicting(0), evicting(0, 3799.0)]),
    (
        "preemption-rate",
        "stopped 4 times for other work (at most 3)",
        [evicting(0, 3600.0 * hour, why=Why.MOVE if hour == 2 else Why.PREEMPT) for hour in range(4)],
    ),
    ("slo", "needs 5.1 s", [evicting(4, contract=True)]),
    ("slo", "between two tokens of its service needs 0.1 s", [evicting(4)]),
    ("advance", "20 GPUs are reserved as launch, and left 8", [started(11, range(16), 1000.0)]),
    (
        "advance",
        "and left 19",
        [started(0, range(1), 10.0), started(1, range(1, 5), 1100.0), started(3, [5], 1599.0)],
    ),
    ("gpu-errors", "started on GPU", [GpuChanged(5.0, 4, healthy=True, xid=119), started(0, [4])]),
    (
        "gpu-errors",
        "still holds GPU",
        [started(0, [4]), GpuChanged(20.0, 4, healthy=True, xid=95), started(1, [5], 31.0)],
    ),
    ("limits", "queue a: holds 18 GPUs, its limit is 17", [started(2, range(16)), started(10, [16, 17])]),
    ("limits", "queue a: holds 1 GPU of T4, its limit is 0", [started(0, [25])]),
    (
        "guarantees",
        "16 GPUs of its guarantee of 16 for more than 130 s",
        [
            Submitted(0.0, 11),
            started(11, range(16)),
            Submitted(20.0, 8),
            evicting(11, 21.0, contract=True),
            stopped(11, at_s=151.0),
            started(8, range(8, 24), 151.0),
        ],
    ),
    (
        "guarantees",
        "no other queue waits",
        [Submitted(0.0, 11), started(11, range(16)), evicting(11, contract=True)],
    ),
    ("floors", "never ends", [floored(4, until_s=float("inf"))]),
    ("floors", "for 1801 s (lease 1800 s)", [floored(4, 10.0, 1811.0)]),
    ("floors", "lowered 599 s after it rose", [floored(4, 10.0), floored(2, 609.0)]),
    ("floors", "lowered 599 s after it rose", [floored(4, 10.0), floored(0, 609.0, 609.0)]),
    (
        "floors",
        "lowered 40 s after it rose",
        [floored(4), Scaled(20.0, 1, 2, 1, 0), started(10, [0]), floored(2, 50.0)],
    ),
    ("floors", "scaled to 2 replicas, its load needs 3", [Scaled(20.0, 0, 2, 3, 0)]),
    ("floors", "scaled to 4 replicas, its load needs 5", [floored(4), Scaled(20.0, 0, 4, 5, 4)]),
    ("floors", "the floor in force is 0", [floored(4, 10.0, 600.0), Scaled(600.0, 0, 4, 1, 4)]),
    (
        "floors",
        "the floor in force is 0",
        [floored(4), floored(0, 700.0, 700.0), Scaled(720.0, 0, 4, 1, 4)],
    ),
    ("floors", "its floor is 0", [floored(4, 10.0, 600.0), Scaled(610.0, 0, 4, 1, 0)]),
    ("floors", "the floor in force is 4", [floored(4), Scaled(20.0, 0, 4, 4, 0)]),
    ("room", "returned its room after 899 s (dwell 900 s)", [*ROOM, floored(4, 20.0), floored(2, 999.0)]),
    ("room", "evicted for a foreseen replica 3599 s after", [*ROOM, BACK, *room(0, 3699.0, "c")]),
    (
        "room",
        "returned its room 3599 s after the time before",
        [
            *(*ROOM, floored(4, 20.0, 1820.0), floored(2, 1001.0, 2801.0), floored(4, 2000.0, 3800.0)),
            *(started(1, [1, 2]), *room(1, 3000.0, "c")),
            *(floored(4, 3700.0, 5500.0), floored(2, 4600.0, 5600.0)),
        ],
    ),
    ("room", "3599 s after the time before", [*LAPSED, floored(4, 3900.0, 5700.0), floored(2, 4599.0, 5700.0)]),
    ("modes", "scale_ahead may not act on its own", [floored(4)]),
    ("effects", "no accepted decision", [floored(4, effect="e1")]),
    ("effects", "was accepted to scale service 1", [Decided(1.0, "e1", "scale", 1), floored(4, effect="e1")]),
    ("effects", "no accepted decision", [started(0, [0], effect="e1")]),
    ("effects", "names no accepted", [started(0, [0])]),
    ("effects", "was accepted to admit", [Decided(1.0, "e1", "admit", 1), started(0, [0], effect="e1")]),
    (
        "effects",
        "used before",
        [Decided(1.0, "e1", "admit", 0), started(0, [0], effect="e1"), started(0, [0], effect="e1")],
    ),
    ("modes", "started although backfill may not", [started(0, [0], backfill=True)]),
    ("modes", "evicted although backfill or", [started(0, [0], backfill=True), evicting(0, contract=True)]),
    ("modes", "evicted although make_room or preempt or reclaim_borrowed may not", [evicting(0)]),
    ("modes", "evicted although defragment", [evicting(0, why=Why.MOVE)]),
    ("modes", "evicted although recover may not", [evicting(0, why=Why.RECOVER)]),
    ("modes", "widened although resize may not", [started(5, range(8)), *resized(5, range(16), milli=8000)]),
    ("modes", "narrowed although make_room or preempt", [started(5, range(16)), *resized(5, range(8), milli=16000)]),
    ("modes", "cut anew although regeometry", [Recutting(5.0, 24, True, THREES, SEVEN, "")]),
    ("effects", "recut: effect 'e1' has no", [Recutting(5.0, 24, True, THREES, SEVEN, "e1")]),
    ("regeometry-rate", "3 changes of MIG geometry", [recut(24, 1000.0 * k, THREES, ()) for k in (1, 2, 3)]),
    (
        "regeometry-rate",
        "cut again 899 s after",
        [recut(24, 10.0, THREES, SEVEN), recut(24, 70.0, THREES, SEVEN, ends=True), recut(24, 969.0, SEVEN, ())],
    ),
    (
        "regeometry-rate",
        "that it left 3599 s ago",
        [recut(24, 10.0, THREES, SEVEN), recut(24, 70.0, THREES, SEVEN, ends=True), recut(24, 3669.0, SEVEN, THREES)],
    ),
    ("modes", "evicted although suspend_idle may not", [started(0, [0]), evicting(0, why=Why.PARK)]),
    ("order", "without waiting", [*SUBMITS, started(0, [0]), stopped(0, Why.PARK), started(0, [0], 200.0)]),
    (
        "notices",
        "without a notice",
        [started(0, [0]), Notified(1.0, 0, 0.0, "e1"), stopped(0), started(0, [0], 200.0), evicting(0, why=Why.PARK)],
    ),
    ("notices", "without a notice", [started(0, [0]), evicting(0, why=Why.PARK)]),
    ("notices", "before the grace", [started(0, [0]), Notified(1.0, 0, 3600.0, "e1"), evicting(0, why=Why.PARK)]),
    ("healthy", "nothing was wrong", [started(0, [0]), evicting(0, why=Why.RECOVER)]),
    (
        "healthy",
        "nothing was wrong",
        [started(0, [0]), GpuChanged(1.0, 0, True, 95), GpuChanged(2.0, 0, True), evicting(0, why=Why.RECOVER)],
    ),
    ("healthy", "nothing was wrong", [started(0, [0]), GpuChanged(1.0, 9, False), evicting(0, why=Why.RECOVER)]),
    ("healthy", "its GPUs worked", [started(1, [0]), evicting(1, why=Why.PARK)]),
    ("effects", "evict", [Decided(1.0, "e1", "admit", 0), evicting(0, effect="e1")]),
]


FINE: list[tuple[str, list[Fact]]] = [
    ("room", [*ROOM, floored(4, 20.0), floored(2, 1000.0)]),
    ("room", [*ROOM, floored(4, 20.0), Scaled(900.0, 1, 2, 1, 0), floored(2, 999.0)]),
    ("room", [*SERVED, *room(0, 100.0, "b", Scaled(105.0, 0, 2, 2, 0)), floored(4, 120.0), floored(2, 999.0)]),
    ("room", [*SERVED, *LACKED, *room(0, 100.0, "b", SERVES), floored(4, 120.0), floored(2, 999.0)]),
    ("room", [*LAPSED, floored(4, 3900.0, 5700.0), floored(2, 4600.0, 5700.0)]),
    ("room", [*ROOM, BACK, *room(0, 3701.0, "c")]),
    ("room", [*ROOM, BACK, *room(0, 3699.0, "c", contract=True)]),
    ("room", [*ROOM, BACK, evicting(0, 3699.0, effect="1/pipeline-x-0123abcd/evict-x"), started(4, [0], 3800.0)]),
    ("floors", [floored(4, 10.0, 1810.0), floored(2, 610.0, 2410.0), floored(0, 1300.0, 1300.0)]),
    ("floors", [floored(4, 10.0, 600.0), Scaled(590.0, 0, 4, 1, 4), Scaled(600.0, 0, 1, 1, 0)]),
    ("floors", [floored(4), Scaled(20.0, 0, 6, 6, 4), Scaled(50.0, 0, 4, 3, 4)]),
    ("floors", [floored(4, 10.0, 600.0), floored(5, 620.0), floored(6, 650.0)]),
    ("floors", [floored(4), Scaled(20.0, 1, 2, 2, 0), started(10, [0]), floored(2, 50.0)]),
    ("effects", [Decided(1.0, "e1", "scale", 0), floored(4, effect="e1")]),
    *CEILINGS_FINE,
    *SHARING_FINE,
    *SCOPES_FINE,
    *TAKINGS_FINE,
    ("capacity", [started(6, [4], milli=600), stopped(6, milli=600), started(0, [4]), stopped(0, Why.CUT)]),
    ("capacity", [started(5, range(16)), *resized(5, range(8)), started(0, [8])]),
    ("geometry", [Recut(5.0, 24, ((0, "4g.40gb", 0), (1, "2g.20gb", 4), (2, "1g.10gb", 6)))]),
    (
        "geometry",
        [
            Recutting(5.0, 24, True, THREES, SEVEN, ""),
            Recut(5.0, 24, ()),
            Recut(65.0, 24, ((2, "7g.80gb", 0),)),
            Recutting(65.0, 24, False, THREES, SEVEN, ""),
            Recutting(66.0, 0, True, (), THREES, ""),
            Recutting(67.0, 0, False, (), (), ""),
            started(0, [0], 70.0),
        ],
    ),
    (
        "regeometry-rate",
        [
            recut(24, 10.0, THREES, SEVEN),
            recut(24, 70.0, THREES, SEVEN, ends=True),
            recut(24, 970.0, SEVEN, ()),
            recut(24, 1000.0, SEVEN, (), ends=True),
            recut(24, 3670.0, (), THREES),
        ],
    ),
    ("effects", [Decided(1.0, "e1", "recut", 24), Recutting(5.0, 24, True, THREES, SEVEN, "e1")]),
    ("gangs", [started(2, range(16)), started(7, [24], instances=(0,))]),
    ("gangs", [started(5, range(16)), *resized(5, range(8)), *resized(5, range(16), 200.0)]),
    ("order", [*SUBMITS, started(0, [0]), stopped(0), started(0, [0], 200.0)]),
    ("order", [*SUBMITS, started(5, range(8)), *resized(5, range(16))]),
    (
        "nodes",
        [
            NodeChanged(5.0, 0, ready=False, cordoned=True),
            NodeChanged(6.0, 0, ready=True, cordoned=False),
            GpuChanged(5.0, 1, healthy=False),
            started(0, [0]),
        ],
    ),
    ("protected", [evicting(0), evicting(4, contract=True), evicting(3, why=Why.RECOVER, contract=True)]),
    (
        "conservation",
        [started(5, range(8)), *resized(5, range(16), gain_s=45.0, milli=8000, full_milli=16000)],
    ),
    (
        "conservation",
        [
            started(0, [0]),
            stopped(0, lost_s=40.0),
            started(0, [0], 200.0),
            stopped(0, Why.END, 5150.0, 200.0),
        ],
    ),
    (
        "min-runtime",
        [started(0, [0], 100.0), evicting(0, 1000.0), started(1, [1, 2]), evicting(1, 11.0, contract=True)],
    ),
    ("min-runtime", [started(5, range(8), 100.0), *resized(5, range(16), 900.0), evicting(5, 1000.0)]),
    ("budgets", [evicting(job, 2000.0 + job, why=Why.RECOVER, contract=True) for job in range(9)]),
    (
        "preemption-rate",
        [
            evicting(0),
            evicting(0, 2001.0, contract=True),
            evicting(0, 2002.0, why=Why.RECOVER, contract=True),
            evicting(0, 3800.0),
            evicting(0, 9000.0, why=Why.PARK),
            evicting(0, 12_000.0),
        ],
    ),
    ("slo", [evicting(10), evicting(0)]),
    ("advance", [started(11, range(16), 999.0), stopped(11, at_s=1200.0), started(11, range(16), 1600.0)]),
    ("advance", [started(2, range(16), 1000.0), started(1, [16, 17], 1001.0), started(3, [25], 1002.0)]),
    ("advance", [started(11, range(16), 10.0, backfill=True), started(1, [16, 17, 18, 19], 1001.0)]),
    ("gpu-errors", [started(0, [4]), GpuChanged(20.0, 4, healthy=True, xid=94), started(1, [5], 31.0)]),
    (
        "gpu-errors",
        [
            started(0, [4]),
            GpuChanged(20.0, 4, healthy=True, xid=95),
            evicting(0, 30.0),
            stopped(0),
            GpuChanged(200.0, 4, healthy=True),
            started(0, [4], 201.0),
        ],
    ),
    (
        "limits",
        [started(2, range(16)), started(0, [16]), started(1, [25]), evicting(2), started(8, range(16))],
    ),
    (
        "limits",
        [
            started(2, range(16)),
            stopped(2),
            started(8, range(16)),
            *resized(8, range(8)),
            started(10, [8, 9]),
        ],
    ),
    (
        "guarantees",
        [
            Submitted(0.0, 11),
            started(11, range(16)),
            Submitted(20.0, 8),
            evicting(11, 21.0, contract=True),
            stopped(11, at_s=141.0),
            started(8, range(8, 24), 150.0),
        ],
    ),
    (
        "budgets",
        [
            evicting(0, 1000.0),
            evicting(2, 1001.0),
            evicting(0, 4600.0),
            evicting(4, 4601.0),
            *[evicting(1, 1002.0, contract=True)] * 9,
        ],
    ),
    (
        "flapping",
        [
            started(0, [0]),
            evicting(0),
            started(0, [0], 2300.0),
            evicting(0, 2301.0, contract=True),
            started(0, [0], 2302.0),
        ],
    ),
    (
        "moves-ahead",
        [
            started(0, [0]),
            stopped(0, Why.RESIZE),
            started(0, [1], 1000.0),
            evicting(0, 2000.0, why=Why.MOVE, ahead=True),
            evicting(1, 7199.0, why=Why.MOVE, ahead=True),
            evicting(1, 10_800.0, why=Why.MOVE, ahead=True),
            evicting(1, 7300.0, why=Why.MOVE),
        ],
    ),
    ("modes", [started(0, [0]), stopped(0, Why.END)]),
    ("healthy", [started(0, [0]), GpuChanged(1.0, 0, True, 95), evicting(0, why=Why.RECOVER)]),
    ("healthy", [started(0, [0]), NodeChanged(1.0, 0, True, True, 120.0), evicting(0, why=Why.RECOVER)]),
    ("healthy", [started(0, [0]), evicting(0, why=Why.PARK)]),
    ("notices", [started(0, [0]), Notified(1.0, 0, 0.0, "e1"), evicting(0, why=Why.PARK)]),
    (
        "effects",
        [
            Decided(1.0, "e1", "admit", 0),
            started(0, [0], effect="e1"),
            Decided(2.0, "e2", "evict", 0),
            evicting(0, effect="e2"),
        ],
    ),
]
