"""The mechanism that shares the GPUs of a node, and labels that contradict the offer of its plugin."""

from __future__ import annotations

from math import nan
from typing import Any

import pytest

from autopilot.contract.sharing_configs import configs_of
from autopilot.core.model.objects import Sharing, SharingConfig
from collectors.kubernetes.collector import Options
from tests.kits.kube_objects import Json, node, pod
from tests.unit.collectors.kubernetes.view import Seen, held, reasons, row

STRATEGY, REPLICAS = "nvidia.com/gpu.sharing-strategy", "nvidia.com/gpu.replicas"
PLAIN, MARKED = "NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-80GB-HBM3-SHARED"
SLICED, CLIENTS = {STRATEGY: "time-slicing", REPLICAS: "4"}, {STRATEGY: "mps", REPLICAS: "2"}
GKE = {
    "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
    "cloud.google.com/gke-max-shared-clients-per-gpu": "4",
    "cloud.google.com/gke-accelerator-count": "8",
}


@pytest.mark.parametrize(
    ("product", "labels", "offered", "sharing", "replicas"),
    [
        (PLAIN, {STRATEGY: "none"}, "8", Sharing.WHOLE, 1),
        (MARKED, SLICED, "32", Sharing.TIME_SLICING, 4),
        (MARKED, CLIENTS, "16", Sharing.MPS, 2),
        (PLAIN, GKE, "32", Sharing.TIME_SLICING, 4),
        (MARKED, {REPLICAS: "4"}, "32", Sharing.WHOLE, 4),  # by a mechanism that it does not state
        (MARKED, SLICED, "28", Sharing.TIME_SLICING, 4),  # the plugin lost a GPU
    ],
)
def test_labels_and_offer_prove_the_mechanism(
    product: str, labels: Json, offered: str, sharing: Sharing, replicas: int
) -> None:
    """Of the device plugin and of GKE; the node stays open."""
    inventory, _ = Seen(node("n1", 8, product=product, labels=labels, capacity={"nvidia.com/gpu": offered})).tables()
    nodes = inventory.nodes
    assert (nodes.sharing.tolist(), nodes.replicas.tolist(), nodes.cordoned.tolist()) == (
        [sharing],
        [replicas],
        [False],
    )


@pytest.mark.parametrize(
    ("product", "labels", "offered", "why"),
    [
        (MARKED, SLICED, "8", "4 pods for each GPU, and its plugin offers 8 of 8 GPUs"),
        (PLAIN, {STRATEGY: "mps"}, "8", "each of its GPUs is offered once"),
        (MARKED, {}, "8", "its product is"),
        (MARKED, {STRATEGY: "none", REPLICAS: "4"}, "32", "states no sharing, and 4 pods share"),
    ],
)
def test_a_contradiction_closes_the_node(product: str, labels: Json, offered: str, why: str) -> None:
    """While labels and offer differ nothing new starts there, and a gap says why."""
    seen = Seen(node("n1", 8, product=product, labels=labels, capacity={"nvidia.com/gpu": offered}))
    batch = seen.batch()
    assert batch.inventory is not None
    assert batch.inventory.nodes.cordoned.tolist() == [True]
    assert batch.inventory.nodes.sharing.tolist() == [Sharing.WHOLE]
    (reason,) = reasons(batch, "sharing")
    assert why in reason


def test_whole_gpus_that_are_shares_stay_a_request_for_whole_ones() -> None:
    """Each on another GPU as far as no source names them; a request for shares by their own name is one for parts."""
    seen = Seen(
        node("n1", 2, product=MARKED, labels=SLICED, capacity={"nvidia.com/gpu": "8"}),
        pod("two", 2, node="n1"),
        node("n2", 1, labels=SLICED, capacity={"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "4"}),
        pod("part", 1, node="n2", resource="nvidia.com/gpu.shared"),
    ).tables()
    found = {name: row(seen[1], f"team/{name}") for name in ("two", "part")}
    assert [(each["gpus"], each["gpu_milli"]) for each in found.values()] == [(2, 0), (1, 250)]
    assert len(set(held(seen, "team/two"))) == 2
    assert seen[1].placements.milli.tolist() == [250] * 3


CONFIGS = configs_of({"whole": "whole", "slices": "time-slicing-4", "clients": "mps-2-single"})


@pytest.mark.parametrize(
    ("given", "offers"),
    [
        ({"labels": {"nvidia.com/mig.strategy": ""}}, 0b111),
        ({}, 0b011),  # the plugin refuses MPS beside the MIG strategy `mixed`
        ({"labels": {"nvidia.com/gpu.count": ""}}, 0),
        ({"labels": GKE, "capacity": {"nvidia.com/gpu": "32"}}, 0),
        ({"capacity": {"nvidia.com/gpu": "7", "nvidia.com/mig-1g.10gb": "7"}}, 0),
    ],
)
def test_a_node_offers_what_its_plugin_can_do(given: dict[str, Any], offers: int) -> None:
    """Of the entries that the operator states; nothing under another layer, and nothing in MIG mode."""
    inventory, _ = Seen(node("n1", 8, **given), options=Options(sharing=CONFIGS)).tables()
    assert inventory.nodes.sharing_offers.tolist() == [offers]
    assert inventory.names.sharing_configs == (
        SharingConfig("whole", Sharing.WHOLE, 1),
        SharingConfig("slices", Sharing.TIME_SLICING, 4),
        SharingConfig("clients", Sharing.MPS, 2, single=True),
    )


def test_without_a_statement_no_node_is_turned() -> None:
    """An owner who keeps a node as it is says so for its sharing too."""
    kept = node("n1", 8)
    kept["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    for options in (Options(), Options(sharing=CONFIGS)):
        inventory, _ = Seen(kept, options=options).tables()
        assert inventory.nodes.sharing_offers.tolist() == [0]


@pytest.mark.parametrize(("ours", "offers"), [("", 0), ("whole", 0), ("clients", 0b011)])
def test_a_node_whose_configuration_somebody_else_chose_is_not_turned(ours: str, offers: int) -> None:
    """The annotation names the value of the label that we set."""
    seen = node("n1", 8, labels={"nvidia.com/device-plugin.config": "clients"})
    seen["metadata"]["annotations"] = {"gpu-autopilot.io/sharing-config": ours} if ours else {}
    inventory, _ = Seen(seen, options=Options(sharing=CONFIGS)).tables()
    assert inventory.nodes.sharing_offers.tolist() == [offers]


@pytest.mark.parametrize(("text", "at_s", "gaps"), [("", nan, 0), ("1700000000", 1.7e9, 0), ("yesterday", nan, 1)])
def test_its_owner_states_when_it_was_scrubbed(text: str, at_s: float, gaps: int) -> None:
    """In seconds since 1970, as `date +%s` writes it; anything else does not count, and a gap says so."""
    given = node("n1", 8)
    given["metadata"]["annotations"] = {"gpu-autopilot.io/scrubbed-at": text} if text else {}
    batch = Seen(given).batch()
    assert batch.inventory is not None
    assert batch.inventory.nodes.scrubbed_s.tolist() == pytest.approx([at_s], nan_ok=True)
    assert len([each for each in reasons(batch, "report") if "is no time in seconds" in each]) == gaps
