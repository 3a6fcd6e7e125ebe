"""Names as their writers write them, for what no other test makes."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import msgspec
import numpy as np
import pytest

from autopilot import checkpoint, checkpoint_hook
from autopilot.core.hardware import dcgm
from autopilot.core.model.objects import ServingRole
from autopilot.core.model.snapshot import Topology
from collectors import promql
from collectors.exposition import Scanner
from collectors.kubernetes.constraints import restricting
from collectors.kubernetes.nodes import facts_of
from collectors.kubernetes.parts import parts_of
from collectors.kubernetes.serving import role_of, serves
from collectors.kubernetes.sharing import vendor_of
from collectors.kubernetes.wire import Meta, Node, Taint
from collectors.prometheus import PrometheusCollector
from collectors.promql import Answered
from collectors.slo.sources import SOURCES
from collectors.training import TrainingMetrics
from tests.e2e.test_prometheus_collector import serving
from tests.kits import kube_objects
from tests.kits.kube_objects import node, pod
from tests.unit.collectors.kubernetes.view import Seen, row


def _node(**more: object) -> Node:
    return msgspec.convert(node("n1", **more), Node)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "key", ["aws-node-termination-handler/scheduled-maintenance", "node.kubernetes.io/out-of-service"]
)
def test_a_node_under_maintenance_gets_no_new_work(key: str) -> None:
    """It has no end that is announced, so its work stays."""
    facts = facts_of(_node(taints=[{"key": key, "effect": "NoSchedule"}]))
    assert facts.cordoned
    assert np.isnan(facts.reclaim_at_s)


@pytest.mark.parametrize(
    "key", ["nvidia.com/gpu", "node.kubernetes.io/not-ready", "node.cloudprovider.kubernetes.io/shutdown"]
)
def test_taints_that_follow_a_state_ask_nothing_of_work(key: str) -> None:
    """Devices bring a toleration for the first one, and the others go with the state of the node."""
    assert not restricting(Taint(key, "NoSchedule"))
    assert restricting(Taint("team", "NoSchedule"))


@pytest.mark.parametrize("resource", ["volcano.sh/gpu-memory", "k8s.amazonaws.com/vgpu"])
def test_a_node_that_offers_parts_of_its_gpus_takes_no_decision(resource: str) -> None:
    """Which part a pod holds is not read."""
    assert resource in facts_of(_node(capacity={resource: "80"})).barred


@pytest.mark.parametrize(("resource", "maker"), [
    ("google.com/tpu", "Google TPU"),
    ("aws.amazon.com/neuron", "AWS Neuron"),
    ("aws.amazon.com/neuroncore", "AWS Neuron"),
    ("cambricon.com/mlu", "Cambricon"),
    ("hygon.com/dcu", "Hygon"),
    ("metax-tech.com/gpu", "MetaX"),
    ("mthreads.com/gpu", "Moore Threads"),
    ("enflame.com/gcu", "Enflame"),
    ("birentech.com/gpu", "Biren"),
    ("kunlunxin.com/xpu", "Kunlunxin"),
    ("qualcomm.com/qaic", "Qualcomm"),
])  # fmt: skip
def test_other_accelerators_are_known_by_their_maker(resource: str, maker: str) -> None:
    """As their device plugins name them."""
    assert vendor_of(_node(capacity={resource: "8"})) == (resource, maker)


def test_work_of_older_versions_of_kai_is_in_its_queue() -> None:
    """The label was `runai/queue` before 0.6."""
    queue = {"kind": "Queue", "metadata": kube_objects.meta("team-a"), "spec": {}}
    view = Seen(node("n1"), queue, pod("p", 1, labels={"runai/queue": "team-a"}))
    _, work = view.tables()
    assert work.queues.id[row(work, "team/p")["queue"]] == "team-a"


@pytest.mark.parametrize(
    "key", ["modelserving.volcano.sh/name", "model.aibrix.ai/name", "seldon-deployment-id", "grove.io/podclique"]
)
def test_pods_of_serving_systems_serve(key: str) -> None:
    """Whatever owns them."""
    assert serves(Meta("p", "u", "n", labels={key: "x"}))


@pytest.mark.parametrize("key", [
    "llm-d.ai/role",
    "nvidia.com/dynamo-sub-component-type",
    "nvidia.com/dynamo-component-type",
    "disaggregatedset.x-k8s.io/role",
    "modelserving.volcano.sh/role",
    "rolebasedgroup.workloads.x-k8s.io/role",
    "rbg.workloads.x-k8s.io/role-name",
    "role-name",
])  # fmt: skip
def test_labels_of_serving_systems_name_the_role_of_a_pod(key: str) -> None:
    """Prefill or decode."""
    assert role_of(Meta("p", "u", "n", labels={key: "prefill"})) == ServingRole.PREFILL


@pytest.mark.parametrize(
    ("key", "column"),
    [
        ("kueue.x-k8s.io/podset-required-topology", "topology"),
        ("kueue.x-k8s.io/podset-preferred-topology", "preferred"),
    ],
)
def test_an_annotation_for_kueue_names_the_level_of_a_gang(key: str, column: str) -> None:
    """Its value is the label of the level."""
    kinds = ("dc/block", "dc/rack", "kubernetes.io/hostname")
    levels = {"levels": [{"nodeLabel": each} for each in kinds]}
    topology = {"kind": "Topology", "metadata": kube_objects.meta("t"), "spec": levels}
    waits = pod("p", 8, annotations={key: "dc/rack"})
    assert row(Seen(topology, node("n1"), waits).tables()[1], "team/p")[column] == Topology.LEAF


def test_older_pods_of_hami_name_their_gpus() -> None:
    """The annotation of HAMi before 2.4."""
    uuid = "GPU-0fd64a8c-1a2b-3c4d-5e6f-000000000001"
    assert parts_of(Meta("p", annotations={"4pd.io/vgpu-ids-new": f"{uuid},NVIDIA,8000,25:;"})).named == ((uuid, 8000),)


LOWER = """
dcgm_fi_prof_sm_active{L} 0.6
dcgm_fi_prof_sm_occupancy{L} 0.3
dcgm_fi_prof_gr_engine_active{L} 0.9
dcgm_fi_prof_pipe_tensor_active{L} 0.2
dcgm_fi_prof_dram_active{L} 0.4
dcgm_fi_prof_nvlink_tx_bytes{L} 10
dcgm_fi_prof_nvlink_rx_bytes{L} 20
dcgm_fi_prof_pcie_tx_bytes{L} 30
dcgm_fi_prof_pcie_rx_bytes{L} 40
dcgm_gpu_utilization{L} 99
dcgm_fb_used{L} 1000
dcgm_fb_free{L} 79000
dcgm_fb_reserved{L} 500
dcgm_power_usage{L} 500
dcgm_sm_clock{L} 1755
DCGM_FI_DEV_PCIE_LINK_WIDTH{L} 16
dcgm_total_energy_consumption{L} 1e9
dcgm_enc_utilization{L} 5
dcgm_dec_utilization{L} 25
dcgm_xid_errors{L} 0
"""
UPPER = """
DCGM_FI_PROF_SM_ACTIVE{L} 0.6
DCGM_FI_PROF_SM_OCCUPANCY{L} 0.3
DCGM_FI_PROF_GR_ENGINE_ACTIVE{L} 0.9
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{L} 0.2
DCGM_FI_PROF_DRAM_ACTIVE{L} 0.4
DCGM_FI_PROF_NVLINK_TX_BYTES{L} 10
DCGM_FI_PROF_NVLINK_RX_BYTES{L} 20
DCGM_FI_PROF_PCIE_TX_BYTES{L} 30
DCGM_FI_PROF_PCIE_RX_BYTES{L} 40
DCGM_FI_DEV_GPU_UTIL{L} 99
DCGM_FI_DEV_FB_USED{L} 1000
DCGM_FI_DEV_FB_FREE{L} 79000
DCGM_FI_DEV_FB_RESERVED{L} 500
DCGM_FI_DEV_POWER_USAGE{L} 500
DCGM_FI_DEV_SM_CLOCK{L} 1755
DCGM_FI_DEV_PCIE_LINK_WIDTH{L} 16
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{L} 1e9
DCGM_FI_DEV_ENC_UTIL{L} 5
DCGM_FI_DEV_DEC_UTIL{L} 25
DCGM_FI_DEV_XID_ERRORS{L} 0
DCGM_FI_DEV_ROW_REMAP_FAILURE{L} 0
DCGM_FI_DEV_ROW_REMAP_PENDING{L} 0
"""
SINCE_46 = """
DCGM_FI_PROF_SM_UTIL_RATIO{L} 0.6
DCGM_FI_PROF_SM_OCCUPANCY_RATIO{L} 0.3
DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO{L} 0.9
DCGM_FI_PROF_TENSOR_UTIL_RATIO{L} 0.2
DCGM_FI_PROF_DRAM_UTIL_RATIO{L} 0.4
DCGM_FI_PROF_NVLINK_TX_BYTES{L} 10
DCGM_FI_PROF_NVLINK_RX_BYTES{L} 20
DCGM_FI_PROF_PCIE_TX_BYTES{L} 30
DCGM_FI_PROF_PCIE_RX_BYTES{L} 40
DCGM_FI_DEV_GPU_UTIL_RATIO{L} 99
DCGM_FI_DEV_FB_USED{L} 1000
DCGM_FI_DEV_BOARD_POWER_WATTS{L} 500
DCGM_FI_DEV_SM_CLOCK{L} 1755
DCGM_FI_DEV_PCIE_LINK_WIDTH{L} 16
DCGM_FI_DEV_ENC_UTIL{L} 5
DCGM_FI_DEV_DEC_UTIL{L} 25
DCGM_FI_DEV_XID_ERROR{L} 0
"""
OLD = 'gpu="0",uuid="GPU-1",pod_name="p",pod_namespace="n",container_name="c"'
NEW = 'gpu="0",UUID="GPU-1",modelName="NVIDIA H100 80GB HBM3",hostname="n1",pod="p",namespace="n",container="c"'
KEPT_APART = 'gpu="0",UUID="GPU-1",Hostname="n1",exported_pod="p",exported_namespace="n",exported_container="c"'


@pytest.mark.parametrize(
    ("text", "labels"),
    [(LOWER, OLD), (UPPER, NEW), (UPPER, KEPT_APART), (SINCE_46, NEW)],
    ids=["exporter 1", "exporter 2", "a second Prometheus", "DCGM 4.6"],
)
def test_each_generation_of_names_and_labels_is_read(text: str, labels: str) -> None:
    """Every signal has its value, and the container that has the GPU is known."""
    scanner = Scanner()
    frame = scanner.scan([text.replace("{L}", f"{{{labels}}}")], ["n1"])
    found = dict(zip(dcgm.SIGNALS, frame.values[:, list(frame.entity_ids).index("GPU-1")].tolist(), strict=True))
    assert found == pytest.approx(
        {
            "sm_active_ratio": 0.6,
            "sm_occupancy_ratio": 0.3,
            "tensor_active_ratio": 0.2,
            "dram_active_ratio": 0.4,
            "nvlink_bytes_s": 30,
            "pcie_bytes_s": 70,
            "fb_used_mib": 1000,
            "power_w": 500,
            "video_ratio": 0.25,
            "duty_ratio": 0.9,
            "sm_clock_mhz": 1755,
            "pcie_width": 16,
        }
    )
    assert set(scanner.owned().owners) == {("n", "p", "c")}


@pytest.mark.parametrize("label", ["nvlink", "nvswitch"])
def test_series_of_links_and_switches_are_no_gpus(label: str) -> None:
    """They have values of their own under the name of a GPU's field."""
    text = f'DCGM_FI_DEV_POWER_USAGE{{UUID="GPU-1",{label}="0"}} 500\n'
    assert not list(Scanner().scan([text], ["n1"]).entity_ids)


def test_training_programs_report_by_the_names_that_are_asked_for() -> None:
    """The text of the library has the metrics of the queries."""
    names = ("gpu_autopilot_checkpoint_timestamp_seconds", "gpu_autopilot_heartbeat_timestamp_seconds")
    pod = SimpleNamespace(namespace="team", name="p")
    text = checkpoint_hook.metrics_text(checkpoint.Ack("1", 5, "/p", 90.0), 7, 95.0, pod)
    told = {name: line.rpartition(" ")[2] for name in names for line in text.splitlines() if line.startswith(name)}
    asked: list[str] = []

    def fetch(query: str, _now_s: float) -> Answered:
        (name,) = (name for name in names if f"({name}{{" in query)
        asked.append(name)
        labels = '{"namespace":"team","pod":"p"}'
        row = f'{{"metric":{labels},"value":[100,"{told[name]}"]}}'
        return promql.decode(f'{{"status":"success","data":{{"resultType":"vector","result":[{row}]}}}}'.encode())

    metrics = TrainingMetrics(fetch)
    metrics.ask(100.0)
    assert sorted(asked) == sorted(names)
    found = metrics.told(100.0)["team", "p"]
    assert (found.saved_s, found.beat_s) == (90.0, 95.0)


def test_copies_of_a_series_of_a_mesh_differ_in_labels_of_the_operator() -> None:
    """Pairs of Prometheus, scrape jobs and Mimir add these, and nothing else may split a proxy."""
    (istio,) = (each for each in SOURCES if each.name == "istio")
    (without,) = set(re.findall(r"max without \(([^)]*)\)", "".join(istio.queries.values())))
    copies = {"job", "endpoint", "container", "prometheus", "prometheus_replica", "replica", "__replica__"}
    assert copies <= {name.strip() for name in without.split(",")}


def test_a_target_that_is_down_is_a_gap() -> None:
    """Prometheus writes `up` for each target, 0 where its last scrape failed."""

    def answer(path: str) -> tuple[int, bytes]:
        label = path.partition("/label/")[2].partition("/")[0]
        if label:
            values = {"__name__": ["DCGM_FI_DEV_GPU_UTIL"], "job": ["dcgm"]}.get(label, [])
            return 200, json.dumps({"status": "success", "data": values}).encode()
        down = parse_qs(urlsplit(path).query)["query"][0].startswith("up{")
        rows = [{"metric": {"instance": "10.0.0.1:9400"}, "value": [100, "0"]}] if down else []
        return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": rows}}).encode()

    with serving(answer) as url:
        gaps = PrometheusCollector(url, timeout_s=5.0, workers=1).collect(100.0).gaps
    assert ("10.0.0.1:9400", "up == 0: its last scrape failed") in {(gap.object_id, gap.reason) for gap in gaps}
