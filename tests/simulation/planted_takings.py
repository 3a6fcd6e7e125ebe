"""Facts for the checker of the blast radius: what the evictions of one tick took, and what started on it."""

from __future__ import annotations

from simulator.world.facts import Decided, Fact, NodeChanged, Why
from tests.simulation.fact_builders import evicting, started, stopped

FIRST, LATER = "1/pipeline-job-8-0123abcd/evict-a", "2/pipeline-job-8-89abcdef/evict-b"
"""Instructions of two ticks that make room for job 8, which needs two nodes of eight."""
NODES = [started(2, range(16)), started(5, range(16, 24))]
HALVES = [started(2, range(8)), started(11, range(8, 16)), started(5, range(16, 24))]

TAKINGS: list[tuple[str, str, list[Fact]]] = [
    ("needed", "1 other gang leaves", [*NODES, evicting(2, 2000.0, True, FIRST), evicting(5, 2005.0, True, LATER)]),
    (
        "needed",
        "job job-2: stopped for job job-8, which can start on 16 GPUs without it: 2 other gangs leave",
        [*HALVES, *(evicting(job, effect=FIRST) for job in (2, 11, 5))],
    ),
    (
        "needed",
        "can start on 16 GPUs without it",
        [
            *NODES,
            evicting(2, effect=FIRST),
            stopped(2, at_s=2000.0),
            evicting(5, effect=FIRST),
            stopped(5, at_s=2000.0),
        ],
    ),
    ("blast-radius", "16 GPUs were taken", [started(2, range(16)), evicting(2), started(1, [0, 1], 2100.0)]),
    ("blast-radius", "so that 0 could start", [started(1, [0, 1]), evicting(1), started(1, [0, 1], 2100.0)]),
    (
        "blast-radius",
        "16 GPUs were taken",
        [  # what was lost came before the taking
            Decided(1900.0, "e0", "admit", 0),
            started(2, range(16), 1950.0),
            Decided(2000.0, "e1", "evict", 2),
            evicting(2, effect="e1"),
            stopped(2, at_s=2050.0),
            Decided(2100.0, "e2", "admit", 1),
            started(1, [0, 1], 2100.0, effect="e2"),
        ],
    ),
    ("blast-radius", "so that 0 could start", [started(2, range(16)), evicting(2), stopped(2, at_s=2100.0)]),
    (
        "blast-radius",
        "6 GPUs were taken (this one first) so that 2 could start",
        [  # two proposals of one tick
            started(0, range(3)),
            started(3, range(3, 6)),
            evicting(0, effect="7/preempt-a/evict-a"),
            evicting(3, effect="7/preempt-b/evict-b"),
            started(1, [0, 3], 2000.0),
            started(4, [1, 2, 4, 5], 2600.1),
        ],
    ),
    (
        "blast-radius",
        "4 GPUs were taken (this one first) so that 1 could start",
        [  # the later tick gives the first victim its GPUs back; that is no gain of the first tick
            started(0, range(4)),
            started(3, [4]),
            evicting(0, effect="7/preempt-a/evict-a"),
            started(5, [0], 2000.0),
            evicting(3, why=Why.MOVE, effect="8/move-b/evict-b"),
            started(0, range(1, 5), 2000.0),
        ],
    ),
]
"""(checker, words of its message, facts)"""

TAKINGS_FINE: list[tuple[str, list[Fact]]] = [
    ("needed", [*HALVES, evicting(2, effect=FIRST), evicting(11, 2005.0, effect=LATER)]),
    ("needed", [*NODES, evicting(2, effect=FIRST), evicting(5, 2005.0, effect="2/pipeline-job-9-89abcdef/evict-b")]),
    ("needed", [*NODES, evicting(2, effect=FIRST), evicting(5, 2121.0, effect=LATER)]),  # its grace is over
    ("needed", [*NODES, evicting(2, effect=FIRST), stopped(2, at_s=2004.0), evicting(5, 2005.0, effect=LATER)]),
    (
        "needed",
        [
            *NODES,
            evicting(2, effect=FIRST),
            NodeChanged(2001.0, 0, ready=True, cordoned=True),
            evicting(5, 2005.0, effect=LATER),
        ],
    ),
    (
        "needed",
        [*NODES, evicting(2, effect=FIRST, why=Why.MOVE), evicting(5, effect=FIRST)],
    ),  # one makes way for another
    ("blast-radius", [started(1, [0, 1]), evicting(1), started(0, [0], 2100.0), started(4, [1], 2200.0)]),
    ("blast-radius", [started(2, range(16)), evicting(2, contract=True), started(1, [0, 1], 2100.0)]),
    (
        "blast-radius",
        [  # each tick of the instant takes no more than twice what starts; both together would
            started(0, range(2)),
            started(3, [2]),
            evicting(0, effect="7/preempt-a/evict-a"),
            started(5, [0], 2000.0),
            evicting(3, why=Why.MOVE, effect="8/move-b/evict-b"),
            started(0, [1, 2], 2000.0),
        ],
    ),
    (
        "blast-radius",
        [started(2, range(16)), evicting(2), NodeChanged(2001.0, 0, ready=False, cordoned=False)],
    ),
    (
        "blast-radius",
        [  # the start that it was for failed
            started(2, range(16)),
            evicting(2),
            stopped(2, at_s=2050.0),
            Decided(2100.0, "e1", "admit", 5),
            started(1, [0, 1], 2200.0),
        ],
    ),
    (
        "blast-radius",
        [started(2, range(16)), evicting(2), Decided(2000.0, "e1", "evict", 0), stopped(2, at_s=2050.0)],
    ),
    ("blast-radius", [started(2, range(16)), evicting(2)]),  # its victim never left
]
"""(checker, facts that are lawful)"""
