"""What fields of a contract say against each other, the pods, and the cluster."""

from __future__ import annotations

import pytest

from autopilot.contract import PREFIX, Contract, Facts, parse_contract
from autopilot.contract.rules import RULES
from tests.kits.contract_kit import H100, contract, ours, problems, refusal

CONTRADICTIONS: list[tuple[Facts, dict[str, str], str, list[str]]] = [
    (Facts(), {"objective_s": "1s", "slo_class": "batch"}, "objective-s", ["slo-class is batch"]),
    (Facts(), {"slo_class": "latency-critical", "preemptible": "true"}, "preemptible", ["never evicted"]),
    (Facts(), {"members": "4", "min_members": "9"}, "min-members", ['"9" is above members', "members is 4"]),
    (Facts(members=4), {"min_members": "9"}, "min-members", ["the number of its pods is 4"]),
    (Facts(members=8), {"members": "6"}, "members", ["its controller declares 8"]),
    (Facts(), {"mig_profile": "1g.10gb", "gpus_per_member": "1"}, "mig-profile", ["gpus-per-member"]),
    (Facts(), {"gpu_milli": "500", "gpus_per_member": "1", "trust": "trusted"}, "gpu-milli", ["keep one"]),
    (Facts(gpus_per_member=8), {"gpus_per_member": "4"}, "gpus-per-member", ["requests 8 whole GPUs"]),
    (Facts(gpus_per_member=8), {"mig_profile": "1g.10gb"}, "mig-profile", ["requests 8 whole GPUs"]),
    (Facts(mig_profile="1g.10gb"), {"mig_profile": "2g.20gb"}, "mig-profile", ["requests 1g.10gb"]),
    (Facts(mig_profile="1g.10gb"), {"gpus_per_member": "1"}, "gpus-per-member", ["requests 1g.10gb"]),
    (Facts(), {"gpu_milli": "500", "members": "2", "trust": "trusted"}, "gpu-milli", ["it has 2"]),
    (Facts(), {"gpu_milli": "500"}, "gpu-milli", ["untrusted", "trust to trusted", "MIG profile"]),
    (Facts(), {"share": "dev"}, "share", ['"dev" is declared for untrusted work', "across-tenants", "leave share out"]),
    (Facts(), {"share": "pair", "trust": "untrusted", "members": "5"}, "share", ["more than 4 GPUs", "it has 5"]),
    (Facts(), {"share": "dev", "trust": "trusted", "topology": "island"}, "share", ["NVLink island"]),
    (Facts(gpus_per_member=4), {"share": "dev", "trust": "trusted", "tensor_parallel": "4"}, "share", ["slowest"]),
    (Facts(), {"share": "pair", "trust": "trusted", "slo_class": "latency-critical"}, "share", ["its requests"]),
    (Facts(), {"share": "pair", "trust": "across-tenants", "mig_profile": "1g.10gb"}, "share", ["whole GPUs"]),
    (H100, {"gpu_type": "V100|A10"}, "gpu-type", ['"V100|A10"', "the cluster has H100-80GB, T4"]),
    (H100, {"mig_profile": "1g.18gb"}, "mig-profile", ["H100-80GB has 1g.10gb", "T4 has none"]),
    (Facts(), {"mig_profile": "1g.10gb", "gpu_type": "T4|A30-24GB"}, "mig-profile", ["A30-24GB has 1g.6gb"]),
    (Facts(), {"gpu_memory_gib": "96", "gpu_type": "H100-80GB"}, "gpu-memory-gib", ["the largest has 80"]),
    (H100, {"gpu_memory_gib": "20", "mig_profile": "1g.10gb"}, "gpu-memory-gib", ["the largest has 10"]),
    (Facts(queue_limit_gpus=16), {"members": "3", "gpus_per_member": "8"}, "members", ["24 GPUs", "hold 16"]),
    (Facts(queue_limit_gpus=0), {"gpu_milli": "500", "trust": "trusted"}, "members", ["0.5 GPUs"]),
    (Facts(queue_limit_gpus=1), {"mig_profile": "1g.10gb", "members": "8"}, "members", ["2 GPUs"]),
    (Facts(), {"mig_profile": "1g.10gb", "topology": "island"}, "topology", ["no NVLink peer-to-peer"]),
    (Facts(), {"mig_profile": "1g.10gb", "preferred_topology": "island"}, "preferred-topology", ["peer-to-peer"]),
    (Facts(), {"mig_profile": "1g.10gb", "members": "2", "tensor_parallel": "2"}, "tensor-parallel", ["peer"]),
    (Facts(), {"gpu_milli": "5", "trust": "trusted", "tensor_parallel": "2"}, "tensor-parallel", ["peer"]),
    (Facts(), {"gpus_per_member": "8", "tensor_parallel": "3"}, "tensor-parallel", ["a member has 8 GPUs"]),
    (Facts(), {"members": "3", "gpus_per_member": "8", "tensor_parallel": "16"}, "tensor-parallel", ["24 GPUs"]),
    (
        Facts(),
        {"members": "4", "min_members": "2", "gpus_per_member": "8", "tensor_parallel": "16"},
        "tensor-parallel",
        ["set min-members to members"],
    ),
    (
        Facts(),
        {"members": "2", "gpus_per_member": "8", "tensor_parallel": "16", "topology": "leaf"},
        "topology",
        ["16 GPUs spans members"],
    ),
    (Facts(), {"topology": "island", "preferred_topology": "leaf"}, "preferred-topology", ["topology is island"]),
    (Facts(), {"topology": "rack", "preferred_topology": "leaf"}, "preferred-topology", ["topology is rack"]),
    (Facts(), {"topology": "spread", "preferred_topology": "zone"}, "preferred-topology", ["is spread"]),
    (Facts(), {"node_selector": "a=b,a=c"}, "node-selector", ['"a=b,a=c"', "both a=b and a=c"]),
    (Facts(node_selector=("a=b",)), {"node_selector": "a=c"}, "node-selector", ["both a=b and a=c"]),
    (
        Facts(),
        {"checkpoint_interval_s": "10m", "checkpoint_write_s": "600"},
        "checkpoint-write-s",
        ["checkpoint-interval-s is 600"],
    ),
]


@pytest.mark.parametrize(("facts", "values", "key", "words"), CONTRADICTIONS)
def test_a_contradiction_names_the_field_and_the_mend(
    facts: Facts, values: dict[str, str], key: str, words: list[str]
) -> None:
    """Each rule finds its case, alone, and says which field should change."""
    said = refusal(facts, **values)
    assert said.startswith(f"{PREFIX}{key}: ")
    assert all(word in said for word in words), said


def test_every_rule_finds_a_case_above() -> None:
    """No rule is there that nothing breaks: without it, one of the cases would pass."""
    found = {problem.reason for facts, values, _, _ in CONTRADICTIONS for problem in problems(facts, **values)}
    silent = []
    for rule in RULES:
        rest = [each for each in RULES if each is not rule]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("autopilot.contract.rules.RULES", tuple(rest))
            passed = [v for f, v, _, _ in CONTRADICTIONS if isinstance(parse_contract(ours(**v), f), Contract)]
        if not passed:
            silent.append(rule.__name__)
    assert not silent
    assert len(found) >= len(RULES)


@pytest.mark.parametrize(
    ("facts", "values"),
    [
        (Facts(), {"checkpoint_interval_s": "30m"}),  # neither size nor write time is needed
        (Facts(), {"checkpoint_gib": "100"}),
        (Facts(), {"gpu_milli": "1000", "gpus_per_member": "4", "members": "2"}),  # the whole is no share
        (Facts(), {"mig_profile": "1g.10gb", "topology": "node", "members": "7"}),  # near, without peer-to-peer
        (H100, {"mig_profile": "1g.18gb|1g.10gb"}),  # one alternative is enough
        (H100, {"gpu_type": "B200|NVIDIA-H100-80GB-HBM3"}),
        (H100, {"gpu_memory_gib": "80"}),
        (Facts(gpu_models=("H100-80GB", "G1")), {"gpu_memory_gib": "96"}),  # the memory of a G1 is not known
        (Facts(gpus_per_member=8), {"gpu_milli": "500", "trust": "trusted"}),
        (Facts(mig_profile="1g.10gb"), {"mig_profile": "2g.20gb|1g.10gb"}),
        (Facts(queue_limit_gpus=16), {"members": "4", "min_members": "2", "gpus_per_member": "8"}),
        (Facts(queue_limit_gpus=1), {"mig_profile": "1g.10gb", "members": "7"}),
        (Facts(), {"topology": "zone", "preferred_topology": "block"}),
        (Facts(), {"preferred_topology": "leaf"}),
        (Facts(), {"slo_class": "latency-critical"}),
        (Facts(gpus_per_member=2), {"share": "pair", "trust": "trusted", "members": "2"}),
        (Facts(), {"share": "never"}),
        (Facts(), {"gpu_milli": "500", "trust": "across-tenants"}),
    ],
)
def test_what_only_looks_like_a_contradiction_passes(facts: Facts, values: dict[str, str]) -> None:
    """Unknown is no reason to refuse, and neither is a statement that says too little."""
    assert contract(facts, **values).assumed


def test_contradictions_are_told_together() -> None:
    """Independent ones do not hide each other."""
    found = problems(H100, mig_profile="1g.18gb", topology="island", members="2", min_members="3")
    assert [each.key for each in found] == ["min-members", "mig-profile", "topology"]
