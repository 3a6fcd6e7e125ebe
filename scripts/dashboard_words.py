"""Reasons of recommendations, in words: by the label `reason` of a recommendation, its reason or else its kind.

Words with numbers are in the explanation linked by the id; in a label they would make a new series at each tick.
"""

from __future__ import annotations

WHY: tuple[tuple[str, str, str], ...] = tuple(
    (reason, words, "")
    for reason, words in {
        "admit": "it fits now",
        "advance": "backfilled on nodes that are reserved in advance",
        "bad_gpu": "an error of its GPU asks for a stop",
        "breach": "its service misses its objective",
        "breach_on_idle": "its service misses its objective, and others are idle",
        "broken": "fewer members than its minimum",
        "check": "an external check no longer admits it",
        "condemned": "an error of the node asks for a restart",
        "coordinator": "it holds GPUs while its own workers wait",
        "due": "backfilled on room that is reserved",
        "expected": "more such requests are expected",
        "expected_whole": "more such requests are expected, and nothing runs there",
        "floor": "its forecast load needs more replicas",
        "foreseen": "a forecast calls for it",
        "foreseen_on_idle": "a forecast calls for it, and others are idle",
        "give_back": "its forecast load needs no floor",
        "gpu": "it is drained to be cut for requests that wait",
        "grow": "no waiting work can use the room",
        "guarantee": "its queue gets back what it is guaranteed",
        "hung": "its GPUs have stopped working",
        "idle": "its replicas do nothing, and others wait",
        "lapsed": "its floor has ended",
        "leave_expected": "whole GPUs are expected to be requested",
        "leave_waiting": "gangs of whole GPUs wait",
        "leaving": "work that already leaves makes room",
        "mark": "still idle after a notice",
        "move": "a gang is expected that does not fit",
        "moves": "others move out of its way",
        "needed": "the offered node is needed again",
        "node": "it is drained to be cut for requests that wait",
        "notify": "idle for long",
        "pipeline": "others make room for it",
        "priority": "preempts work of lower priority",
        "provision": "the present nodes do not take it",
        "renewed": "it is still not used",
        "repaired": "the error of the node is gone",
        "replica": "an idle replica",
        "reserve": "no room yet: room is held for it",
        "returned": "it is used again",
        "run_time": "past its run-time limit",
        "share": "others hold more than their share",
        "shared_time": "preempts work of other queues that would keep others waiting",
        "spending": "its tenant spends far more than usual",
        "spot_shrink": "the cloud takes back a node of it",
        "spot_stop": "the cloud takes back a node of it",
        "stuck": "it was evicted and is still there",
        "time_sharing": "preempts work that would keep others waiting",
        "together": "its queue has a guarantee shortfall",
        "unneeded": "nothing needs the node",
        "waiting": "such requests wait",
        "waiting_whole": "such requests wait, and nothing runs there",
    }.items()
)
