"""The workload contract: what is read, what is assumed, what is refused, and that columns carry it."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopilot.contract import (
    LEVEL_OF,
    NOTHING_KNOWN,
    PREFIX,
    TRUST_OF,
    Contract,
    Domain,
    Facts,
    Level,
    Trust,
    contract_fields,
    parse_contract,
    preemptible_by_class,
)
from autopilot.contract.reading import OTHERS, value_text
from autopilot.contract.tree import SECTIONS, ContractField, Gang, Service, word_of
from autopilot.core.model.objects import Share
from autopilot.core.model.snapshot import SLO_CLASS_NAMES, QueueTable, SloClass, Topology, make
from simulator.running.cluster_collector import ClusterCollector
from simulator.specs.clusterfile import shape_cluster
from simulator.specs.inventory import build_inventory
from simulator.traces.columns import BY_NAME
from simulator.traces.jobs import jobs_from_frame
from simulator.world.cluster import Cluster
from simulator.world.physics import REAL
from simulator.world.work import jobs_from_trace
from tests.kits.contract_kit import H100, contract, problems, refusal

KEYS = [found.key for found in contract_fields()]


# --- reading --------------------------------------------------------------------------------------


def test_each_statement_is_read_into_its_field() -> None:
    """Words, numbers, durations, lists and truth values, in any of their spellings."""
    found = contract(
        slo_class="Interactive",
        priority="7",
        members="8",
        min_members=" 4 ",
        gpus_per_member="8",
        gpu_type="H100-80GB | NVIDIA-H200",
        gpu_memory_gib="79.5",
        tensor_parallel="8",
        topology="block",
        preferred_topology="rack",
        node_selector="disk=fast, example.com/row=",
        checkpoint_interval_s="1h30m",
        checkpoint_gib="360",
        checkpoint_write_s="90",
        checkpoint_on_request="true",
        restart_s="2m",
        preemptible="TRUE",
        exclude="false",
        preemption_delay_s="500ms",
        trust="trusted",
        share="never",
        limit_s="3d",
    )
    assert found.service == Service(SloClass.INTERACTIVE, priority=7)
    assert found.gang == Gang(8, 4)
    assert (found.gpus, found.min_gpus) == (64, 32)
    assert (found.shape.gpu_type, found.shape.gpu_memory_gib) == (("H100-80GB", "NVIDIA-H200"), 79.5)
    assert (found.place.topology, found.place.preferred_topology) == (Domain.BLOCK, Level.RACK)
    assert found.place.node_selector == ("disk=fast", "example.com/row=")
    saves = found.checkpoint
    assert (saves.interval_s, saves.size_gib, saves.write_s, saves.restart_s) == (5400, 360, 90, 120)
    assert saves.on_request
    way = found.preemption
    assert (way.preemptible, way.exclude, way.preemption_delay_s, way.trust) == (True, False, 0.5, Trust.TRUSTED)
    assert found.limits.limit_s == 259_200
    objectives = ("objective-s", "ttft-objective-s", "itl-objective-s")
    assert found.assumed == (*objectives, "serving-role", "gpu-milli", "mig-profile")


@pytest.mark.parametrize("text", ["1g.10gb", "MIG 1g.10gb", "nvidia.com/mig-1g.10gb", "1G.10GB|1g.10gb"])
def test_a_profile_has_one_name_in_the_end(text: str) -> None:
    """Every spelling of a MIG profile, also twice, becomes the name that the facts use."""
    assert contract(mig_profile=text).shape.mig_profile == ("1g.10gb",)


def test_alternatives_keep_their_order() -> None:
    """The best MIG profile stands first."""
    assert contract(mig_profile="2g.20gb|1g.10gb|1g.18gb").shape.mig_profile == ("2g.20gb", "1g.10gb", "1g.18gb")


def test_annotations_of_others_are_passed_over() -> None:
    """Annotations without our prefix, or for operators of the autopilot, are no statements of the job."""
    found = parse_contract({"kueue.x-k8s.io/queue-name": "a", "min-members": "x", PREFIX + "approve": "id"})
    assert found == Contract()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("members", "0", ["whole number from 1 to 1,000,000", "members of the gang"]),
        ("members", "-4", ["from 1"]),
        ("members", "4.0", ["whole number"]),
        ("members", "four", ["whole number"]),
        ("members", "1_000", ["whole number"]),
        ("members", "٤", ["whole number"]),
        ("members", "", ["whole number"]),
        ("min_members", "1000001", ["1,000,000"]),
        ("priority", "-1", ["from 0 to 2,147,483,647"]),
        ("priority", "2147483648", ["from 0 to 2,147,483,647"]),
        ("priority", "9" * 400, ["from 0 to 2,147,483,647", '..."']),
        ("gpu_milli", "1001", ["from 1 to 1,000"]),
        ("gpu_memory_gib", "nan", ["a number from 0 to 4,096"]),
        ("gpu_memory_gib", "80Gi", ["a number from 0 to 4,096"]),
        ("gpu_memory_gib", "1e999", ["a number"]),
        ("limit_s", "0", ["a duration from 1 s to a century"]),
        ("limit_s", "-5m", ["a duration", "write for example 90s"]),
        ("limit_s", "forever", ["a duration", "write for example 90s"]),
        ("objective_s", "2h", ["from 1 ms to 1 h"]),
        ("restart_s", "nan", ["a duration"]),
        ("slo_class", "gold", ["one of latency-critical, interactive, batch", "class of service"]),
        ("slo_class", "latency_critical", ["did you mean latency-critical?"]),
        ("topology", "none", ["one of node, island"]),
        ("preferred_topology", "spread", ["one of island, leaf, rack, block, zone"]),
        ("trust", "yes", ["one of untrusted, trusted, across-tenants"]),
        ("preemptible", "1", ["true or false"]),
        ("mig_profile", "9z", ["MIG profiles, joined by |", "write for example 1g.10gb"]),
        ("mig_profile", "1g.10gb|", ["MIG profiles"]),
        ("gpu_type", "|".join(f"m{k}" for k in range(17)), ["up to 16 names"]),
        ("node_selector", "disk", ["labels as key=value", "write for example disk=fast"]),
        ("node_selector", "a b=c", ["labels as key=value"]),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(name: str, text: str, words: list[str]) -> None:
    """The annotation, its value and what the field takes stand in one line, and nothing else is wrong."""
    said = refusal(NOTHING_KNOWN, **{name: text})
    assert said.startswith(f"{PREFIX}{name.replace('_', '-')}: ")
    assert "is not allowed; it takes" in said
    assert f'"{text[:20]}' in said
    assert all(word in said for word in words), said
    assert "\n" not in said
    assert len(said) < 400


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("min-member", "min-members"),
        ("minMembers", "min-members"),
        ("checkpoint-interval", "checkpoint-interval-s"),
        ("Slo_Class", "slo-class"),
        ("mig-profiles", "mig-profile"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, near: str) -> None:
    """A mistyped annotation under our prefix is not passed over in silence."""
    found = parse_contract({PREFIX + name: "4"})
    assert isinstance(found, tuple)
    assert [str(each) for each in found] == [
        f'{PREFIX}{name}: "4" is not a field of the contract; did you mean {near}?'
    ]


def test_a_name_like_none_is_answered_with_all() -> None:
    """Where nothing is near, every name is listed."""
    said = refusal(zzzzzzzz="1")
    assert all(key in said for key in KEYS)


def test_all_problems_are_told_at_once_in_the_order_of_the_fields() -> None:
    """All errors are in one list; unknown names come last."""
    found = problems(colour="red", limit_s="0", members="x", slo_class="gold")
    assert [each.key for each in found] == ["slo-class", "members", "limit-s", "colour"]


# --- what is assumed ------------------------------------------------------------------------------


def test_a_silent_job_has_the_contract_of_the_defaults() -> None:
    """Without annotations a job is one whole GPU of preemptible batch work, without trust and checkpoints."""
    found = contract()
    assert found == Contract()
    assert found.assumed == tuple(KEYS)
    assert (found.service.slo_class, found.preemption.preemptible) == (SloClass.BATCH, True)
    assert (found.gpus, found.min_gpus, found.shape.gpu_milli) == (1, 1, 1000)
    assert found.preemption.trust == Trust.UNTRUSTED
    assert found.checkpoint.interval_s is None


@pytest.mark.parametrize(("word", "expected"), [("batch", True), ("interactive", False), ("latency-critical", False)])
def test_only_batch_gives_way_by_itself(word: str, expected: bool) -> None:
    """`preemptible` follows from the class where it is not said, in columns as in annotations."""
    assert contract(slo_class=word).preemption.preemptible is expected
    assert preemptible_by_class(SLO_CLASS_NAMES.index(word)) is expected
    assert contract(slo_class="interactive", preemptible="true").preemption.preemptible


@pytest.mark.parametrize(
    ("facts", "values", "share"),
    [
        (Facts(), {"slo_class": "interactive"}, Share.DEV),
        (Facts(members=2, gpus_per_member=2), {"slo_class": "interactive"}, Share.DEV),
        (Facts(gpus_per_member=8), {"slo_class": "interactive"}, Share.NEVER),
        (Facts(), {"slo_class": "interactive", "topology": "island"}, Share.NEVER),
        (Facts(gpus_per_member=2), {"slo_class": "interactive", "tensor_parallel": "2"}, Share.NEVER),
        (Facts(mig_profile="1g.10gb"), {"slo_class": "interactive"}, Share.NEVER),
        (Facts(), {"slo_class": "interactive", "gpu_milli": "500", "trust": "trusted"}, Share.NEVER),
        (Facts(), {"slo_class": "interactive", "share": "never"}, Share.NEVER),
        (Facts(), {"trust": "trusted"}, Share.NEVER),
        (Facts(serves=True), {}, Share.NEVER),
    ],
)
def test_only_small_interactive_work_shares_by_itself(facts: Facts, values: dict[str, str], share: Share) -> None:
    """Whole GPUs outside an island, and never with undeclared trust."""
    found = contract(facts, **values)
    assert found.preemption.share == share
    assert found.preemption.trust == values.get("trust", Trust.UNTRUSTED)


def test_an_objective_makes_the_class() -> None:
    """Only latency-critical work has an objective, so that one who states it need not state the class."""
    found = contract(objective_s="300ms")
    assert (found.service.slo_class, found.service.objective_s) == (SloClass.LATENCY_CRITICAL, 0.3)
    assert not found.preemption.preemptible


def test_a_gang_starts_whole_unless_it_says_otherwise() -> None:
    """`min-members` is `members`; a minimum alone is the gang; without either, the number of pods counts."""
    assert contract(members="8").gang == Gang(8, 8)
    assert contract(min_members="4").gang == Gang(4, 4)
    assert contract(Facts(members=6)).gang == Gang(6, 6)
    assert contract(Facts(members=6), min_members="4").gang == Gang(6, 4)


def test_pods_say_what_annotations_leave_out() -> None:
    """Requests, PriorityClass, deadline and node selector of the pods are taken over."""
    pods = Facts(members=2, gpus_per_member=4, priority=-5, limit_s=600.0, node_selector=("a=b", "disk=fast"))
    found = contract(pods, node_selector="disk=fast,c=d")
    assert (found.gpus, found.service.priority, found.limits.limit_s) == (8, -5, 600)
    assert found.place.node_selector == ("a=b", "disk=fast", "c=d")
    assert contract(pods, priority="3", limit_s="1h").service.priority == 3
    assert contract(Facts(mig_profile="nvidia.com/mig-1g.10gb")).shape.mig_profile == ("1g.10gb",)


def test_a_group_wider_than_a_member_asks_for_one_island() -> None:
    """A tensor-parallel group never leaves its NVLink island; one inside a member needs no constraint."""
    assert contract(members="2", gpus_per_member="8", tensor_parallel="16").place.topology == Domain.ISLAND
    assert contract(members="2", gpus_per_member="8", tensor_parallel="8").place.topology is None
    assert contract(members="2", gpus_per_member="4", tensor_parallel="8", topology="node").gpus == 8


# --- properties -----------------------------------------------------------------------------------


def texts_of(found: ContractField) -> st.SearchStrategy[str]:
    """Texts that the field takes."""
    if found.words:
        return st.sampled_from(found.words)
    if found.kind is bool:
        return st.sampled_from(["true", "false"])
    if found.stated.between:
        items = {"mig-profile": ["1g.10gb", "3g.40gb"], "node-selector": ["a=b", "c.d/e=f"]}
        return st.lists(st.sampled_from(items.get(found.key, ["T4", "H100-80GB"])), min_size=1).map(
            lambda some: found.stated.between.join(dict.fromkeys(some))
        )
    low, high = found.low or 0.0, found.high or 0.0
    if found.kind is int:
        return st.integers(int(low), int(high)).map(str)
    return st.floats(low, high).map(repr)


def value_of(found: Contract, where: ContractField) -> Any:
    """The value of a field of a contract."""
    return getattr(getattr(found, where.section), where.name)


@given(st.sampled_from(contract_fields()), st.data())
def test_what_is_within_the_limits_is_read_or_contradicts(where: ContractField, data: st.DataObject) -> None:
    """No legal text is refused for itself, and the value is the one that was written."""
    text = data.draw(texts_of(where))
    found = parse_contract({PREFIX + where.key: text})
    if isinstance(found, tuple):
        assert all(each.reason != "is not allowed" for each in found)
        return
    assert where.key not in found.assumed
    again = parse_contract({PREFIX + where.key: value_text(value_of(found, where), where.stated.between)})
    assert isinstance(again, Contract)
    if where.kind is float:
        assert value_of(again, where) == pytest.approx(float(text))
    assert again == found or where.kind is float


@given(
    st.dictionaries(
        st.sampled_from([PREFIX + key for key in [*KEYS, *OTHERS]]) | st.text(max_size=9).map(PREFIX.__add__),
        st.text(max_size=12)
        | st.text(string.digits + ".-smhd|=,", max_size=8)
        | st.sampled_from(["batch", "true", "4", "1", "island", "1g.10gb", "8", "trusted", "30m", "a=b"]),
        max_size=8,
    )
)
def test_any_annotations_end_in_a_contract_or_in_problems(values: dict[str, str]) -> None:
    """Nothing that a person can write stops the reader, and what it accepts keeps the rules."""
    found = parse_contract(values, H100)
    if isinstance(found, tuple):
        assert found
        assert all(str(each).startswith(PREFIX) and "\n" not in str(each) for each in found)
        return
    assert 1 <= found.gang.min_members <= found.gang.members
    assert found.shape.gpu_milli == 1000 or not found.shape.mig_profile
    for where in contract_fields():
        value = value_of(found, where)
        if where.high is not None and where.low is not None and value is not None:
            assert where.low <= value <= where.high


def test_huge_annotations_are_refused_at_once() -> None:
    """A quarter of a megabyte in every field is neither taken for a value nor compared letter by letter."""
    for text in ("1" * 250_000 + "x", "a" * 250_000, "1|" * 100_000, "a=b," * 60_000):
        values = {key.replace("-", "_"): text for key in KEYS}
        found = problems(NOTHING_KNOWN, **values, **{text: "1"})
        assert [each.key for each in found[:-1]] == KEYS
        assert max(len(str(each)) for each in found) < 900


# --- the tree -------------------------------------------------------------------------------------


def test_every_field_says_how_it_is_said_and_what_is_assumed() -> None:
    """Each has a name of its own, a meaning, a reason for its default, and limits where it is a number."""
    assert len(set(KEYS)) == len(KEYS)
    assert {found.section for found in contract_fields()} == set(SECTIONS)
    for found in contract_fields():
        assert found.key == found.key.lower().replace("_", "-")
        assert found.meaning, found.key
        assert found.stated.absent, found.key
        if found.kind in (int, float):
            assert found.low is not None, found.key
            assert found.high is not None, found.key


def test_words_are_those_of_the_snapshot() -> None:
    """Classes and domains are written as everywhere else, and each domain has its level."""
    assert tuple(word_of(each) for each in SloClass) == SLO_CLASS_NAMES
    assert set(LEVEL_OF) == set(Domain)
    assert all(LEVEL_OF[Domain(level.value)] > Topology.NONE for level in Level)


# --- columns --------------------------------------------------------------------------------------


def test_columns_carry_the_limits_of_the_contract() -> None:
    """Every column that the tree names exists; it takes whatever an annotation may say."""
    for found in contract_fields():
        if not found.stated.column:
            continue
        column = BY_NAME[found.stated.column]
        assert column.allowed == found.words, found.key
        assert found.low is None or column.low <= found.low, found.key
        assert found.high is None or column.high >= found.high, found.key


def test_a_row_and_annotations_make_the_same_workload() -> None:
    """The same job, said in columns and in annotations, has the same width, minimum, class and price of a stop."""
    row = {
        "job_id": "a",
        "tenant": "t",
        "submit_s": 0,
        "duration_s": 100,
        "gpus": 16,
        "nodes": 4,
        "min_gpus": 8,
        "topology": "rack",
        "priority": 3,
        "limit_s": 600,
        "checkpoint_interval_s": 60,
        "restart_s": 5,
        "preemption_delay_s": 30,
        "gpu_type": "A100-80GB",
        "gpu_memory_gib": 80,
        "checkpoint_on_request": True,
        "trust": "across-tenants",
        "image": "ann/train:3",
    }
    said = contract(
        members="4",
        min_members="2",
        gpus_per_member="4",
        topology="rack",
        priority="3",
        limit_s="10m",
        checkpoint_interval_s="1m",
        restart_s="5",
        preemption_delay_s="30",
        gpu_type="A100-80GB",
        gpu_memory_gib="80",
        checkpoint_on_request="true",
        trust="across-tenants",
    )
    inventory = build_inventory(shape_cluster(8, 8))
    trace = jobs_from_frame(pd.DataFrame([row, row | {"job_id": "b", "preemption_delay_s": None}]), Path("x.csv"))
    cluster = Cluster(inventory, jobs_from_trace(trace, inventory), REAL)
    for job in range(2):
        cluster.submit(job, 0.0)
    queues = make(QueueTable, id=["root"], parent=[-1], guarantee=np.zeros((1, 1), np.int32))
    batch = ClusterCollector(cluster, queues, {}).collect(0.0)
    assert batch.work is not None
    work = batch.work.workloads
    assert (work.gpus[0], work.min_gpus[0]) == (said.gpus, said.min_gpus)
    assert work.gpus_per_member[0] == said.shape.gpus_per_member
    assert said.place.topology is not None
    assert work.topology[0] == LEVEL_OF[said.place.topology] == Topology.LEAF
    assert (work.slo_class[0], work.preemptible[0]) == (said.service.slo_class, said.preemption.preemptible)
    assert (work.priority[0], work.limit_s[0]) == (said.service.priority, said.limits.limit_s)
    assert work.checkpoint_interval_s[0] == said.checkpoint.interval_s
    assert work.restart_s[0] == said.checkpoint.restart_s
    assert work.checkpoint_on_request[0] == said.checkpoint.on_request
    assert work.gpu_memory_mib[0] == 1024 * (said.shape.gpu_memory_gib or 0)
    assert (work.trust[0], work.share[0]) == (TRUST_OF[said.preemption.trust], said.preemption.share)
    assert work.image[0] == "ann/train:3"
    assert work.preemption_delay_s.tolist() == [said.preemption.preemption_delay_s, 0]
