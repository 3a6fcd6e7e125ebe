"""What the planner of geometries answers to ordered requests that go whole to one node."""

from __future__ import annotations

import pytest

from autopilot.core.model.errors import InputError
from tests.conformance.recut import CutGpu, MigRequest, check_gpu, replan

A100, A30 = "A100-80GB", "A30-24GB"


def empty(node: str, index: int, model: str = A100) -> CutGpu:
    """A GPU with nothing on it."""
    return CutGpu(node, index, model)


def two(node: str) -> list[CutGpu]:
    """Two empty GPUs of one node."""
    return [empty(node, 0), empty(node, 1)]


@pytest.mark.parametrize(
    ("gpus", "asked", "nodes", "changes"),
    [
        ([*two("a"), *two("b"), empty("b", 2)], [{"4g.40gb": 3}], {"a": "b"}, 3),  # on several GPUs of one node
        ([empty("a", 0), empty("b", 0)], [{"7g.80gb": 2}, {"7g.80gb": 1}], {"b": "a"}, 1),  # never on two nodes
        ([empty("a", 0)], [{"7g.80gb": 1}, {"1g.10gb": 2}], {"a": "a"}, 1),  # earlier ones first
        ([empty("a", 0)], [{"1g.10gb": 2}, {"7g.80gb": 1}], {"a": "a"}, 1),
        # an earlier one goes where it leaves room for a later one
        ([empty("n1", 0), empty("n2", 0, A30)], [{"1g.10gb": 1}, {"4g.24gb": 1}], {"a": "n1", "b": "n2"}, 2),
        ([CutGpu("a", 0, A100, (("3g.40gb", 0),))], [{"4g.40gb": 1}, {"3g.40gb": 1}], {"b": "a"}, 1),  # in use stays
        ([CutGpu("a", 0, A100, (), (("2g.20gb", 0),))], [{"2g.20gb": 1}], {"a": "a"}, 0),  # it is there already
        ([CutGpu("a", 0, A100, (("1g.10gb", None),))], [{"3g.40gb": 1, "2g.20gb": 1}], {"a": "a"}, 1),  # somewhere
        ([empty("a", 0, A30)], [{"4g.20gb": 1}], {}, 0),  # a profile of another model
    ],
)
def test_requests_are_served_whole_in_their_order(
    gpus: list[CutGpu], asked: list[dict[str, int]], nodes: dict[str, str], changes: int
) -> None:
    """On one node each, with as few changed GPUs as possible."""
    plan = replan(gpus, [MigRequest(name, each) for name, each in zip("abc", asked, strict=False)])
    assert (plan.nodes, len(plan.changed)) == (nodes, changes)
    assert set(plan.placed) | set(plan.unplaced) == set("abc"[: len(asked)])


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        (empty("n1", 3, "T4"), "not known to support MIG"),
        (CutGpu("n1", 3, A30, (("1g.6gb", 0),), (("2g.12gb", 0),)), "cannot exist together"),
        (CutGpu("n1", 3, A30, (("1g.10gb", 0),)), "A30-24GB has no such profile"),
        (CutGpu("n1", 3, A30, (("1g.6gb", None),) * 3, (("2g.12gb", None),)), "cannot exist together"),
    ],
)
def test_a_gpu_that_cannot_be_is_named(gpu: CutGpu, reason: str) -> None:
    """With the reason."""
    with pytest.raises(InputError, match=f"GPU 3 of node n1.*{reason}"):
        check_gpu(gpu)
