"""Images and NUMA policies of nodes, and what waiting work prefers of them."""

from __future__ import annotations

from typing import Any

import pytest

from autopilot.contract.annotations import NUMA_POLICY
from collectors.kubernetes.hints import MOST, Hints
from collectors.kubernetes.wire import Container, PodSpec
from tests.kits.kube_objects import job, node, pod, pod_spec
from tests.unit.collectors.kubernetes.view import Seen, row


def holding(name: str, *images: str, **more: Any) -> dict[str, Any]:
    """A node with these images."""
    made = node(name, **more)
    made["status"]["images"] = [{"names": [each], "sizeBytes": 1} for each in images]
    return made


def asking(name: str, *images: str, gpus: int = 8) -> dict[str, Any]:
    """A waiting Job whose pods have containers of these images; the first one asks for the GPUs."""
    made = job(name, gpus, suspend=True)
    spec = made["spec"]["template"]["spec"] = pod_spec(gpus)
    spec["containers"][0]["image"] = images[0]
    spec["containers"] += [{"name": f"side-{place}", "image": each} for place, each in enumerate(images[1:])]
    return made


def liked(seen: Seen, name: str) -> list[int]:
    """How many of its hints each node has."""
    inventory, work = seen.tables()
    prefers = int(row(work, name)["prefers"])
    return [(int(hints) & prefers).bit_count() for hints in inventory.nodes.hints]


@pytest.mark.parametrize(
    ("asked", "there"),
    [
        ("torch", "docker.io/library/torch:latest"),
        ("team/torch:2", "docker.io/team/torch:2"),
        ("registry.example.com/torch:2", "registry.example.com/torch:2"),
        ("localhost:5000/torch", "localhost:5000/torch:latest"),
        ("registry.example.com/torch@sha256:ab", "registry.example.com/torch@sha256:ab"),
    ],
)
def test_an_image_is_known_by_its_full_name(asked: str, there: str) -> None:
    """Nodes report names with registry and tag; pods may leave both out."""
    seen = Seen(holding("n1", "other:1"), holding("n2", there), asking("a", asked))
    assert liked(seen, "team/a") == [0, 1]


def test_each_image_counts_and_only_those_of_waiting_work() -> None:
    """Running work needs no image any more, and its bits are free for others."""
    seen = Seen(holding("n1", "main:1"), holding("n2", "main:1", "side:1"), asking("a", "main:1", "side:1"))
    assert liked(seen, "team/a") == [1, 2]
    runs = pod("b", 1, node="n1")
    runs["spec"]["containers"][0]["image"] = "main:1"
    _, work = seen.tables(runs)
    assert row(work, "team/b")["prefers"] == 0


def test_an_image_that_is_pulled_later_counts_from_then_on() -> None:
    """No event but that of the node itself."""
    seen = Seen(holding("n1"), holding("n2"), asking("a", "main:1"))
    assert liked(seen, "team/a") == [0, 0]
    seen.batch(holding("n2", "main:1"))
    assert liked(seen, "team/a") == [0, 1]
    seen.batch(holding("n2", "other:1"))
    assert liked(seen, "team/a") == [0, 0]


def test_without_labels_of_a_numa_policy_nothing_is_preferred() -> None:
    """Decisions are those of before."""
    seen = Seen(node("n1"), node("n2"), asking("a", "main:1", gpus=4))
    inventory, work = seen.tables()
    assert not inventory.nodes.hints.any()
    seen.batch(asking("b", "", gpus=4))
    assert row(seen.tables()[1], "team/b")["prefers"] == 0
    assert work.workloads.prefers.any()  # its image, which no node has


@pytest.mark.parametrize(
    ("gpus", "suits"),
    [
        (1, [0, 0, 0, 0]),  # one GPU is in one domain anyway
        (4, [0, 0, 1, 1]),
        (8, [1, 1, 1, 0]),  # the kubelet refuses it under single-numa-node
    ],
)
def test_a_numa_policy_suits_pods_by_their_width(gpus: int, suits: list[int]) -> None:
    """Pods of two to four GPUs fit into a domain; wider ones need several."""
    policies = ("", "none", "restricted", "single-numa-node")
    nodes = [node(f"n{place}", labels={NUMA_POLICY: policy}) for place, policy in enumerate(policies)]
    seen = Seen(*nodes, asking("a", "", gpus=gpus))
    assert liked(seen, "team/a") == suits


def test_a_label_that_comes_later_is_seen() -> None:
    """The rows of waiting work are made again."""
    seen = Seen(node("n1"), node("n2"), asking("a", "", gpus=4))
    assert liked(seen, "team/a") == [0, 0]
    seen.batch(node("n2", labels={NUMA_POLICY: "restricted"}))
    assert liked(seen, "team/a") == [0, 1]


def test_bits_are_used_again_and_their_end_costs_nothing_but_hints() -> None:
    """With all bits in use a further image is no hint; it becomes one once another gang has started."""
    hints = Hints()

    def ask(gang: str, image: str) -> int:
        return hints.prefer(gang, hints.of_pods([PodSpec(containers=[Container(image=image)])], 1))

    bits = {ask(f"g{place}", f"i:{place}") for place in range(MOST)}
    assert len(bits) == MOST
    assert ask("late", "late:1") == 0
    assert ask("other", "i:7") in bits
    before = hints.version
    hints.prefer("g3", ())
    assert ask("late", "late:1") in bits
    assert hints.version > before
