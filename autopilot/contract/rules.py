"""Contradictions between fields, pods and cluster: one rule per contradiction, RULES is the table.

A rule checks all values, declared and inferred, and returns a problem of the field that should change, or None. Its
docstring is its line in docs/workload-contract.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from autopilot.contract.inference import PROMISES, Facts, infer, is_share, needs_island, pod_profile, spans_members
from autopilot.contract.reading import Problem, show, value_text
from autopilot.contract.tree import MOST_SHARED_GPUS, fields_by_key
from autopilot.contract.vocabulary import Domain, Trust
from autopilot.core.hardware.gpu_products import find_product
from autopilot.core.hardware.mig_facts import Profile
from autopilot.core.hardware.mig_profiles import find_gpu_model, find_profile
from autopilot.core.model.objects import Share
from autopilot.core.model.snapshot import GPU_MILLI, SloClass
from autopilot.core.model.units import counted

MOST_SLICES = 7
"""Most MIG instances on one GPU."""

SHAPES = ("mig-profile", "gpu-milli", "gpus-per-member")
SIZE = {
    Domain.SPREAD: 0,  # no domain is narrower: its members must be apart
    Domain.NODE: 0,
    Domain.ISLAND: 1,
    Domain.LEAF: 2,
    Domain.RACK: 2,
    Domain.BLOCK: 3,
    Domain.ZONE: 4,
}
"""Domains by their size."""


@dataclass(frozen=True, slots=True)
class Case:
    """One job: its declared values (`stated`), all its values by annotation (`filled`), and facts about it."""

    stated: Mapping[str, Any]
    filled: Mapping[str, Any]
    facts: Facts

    def __getitem__(self, key: str) -> Any:
        """The value of an annotation, declared or inferred."""
        return self.filled[key]

    @property
    def share(self) -> bool:
        """True if the job requests less than one GPU."""
        return is_share(self.filled)

    @property
    def parts(self) -> bool:
        """True if the job requests a part of a GPU: a share or a MIG instance."""
        return bool(self.filled["mig-profile"]) or self.share

    @property
    def models(self) -> list[str]:
        """GPU models open to it: the declared ones of the cluster; empty: unknown."""
        named, there = self.filled["gpu-type"], self.facts.gpu_models
        if not there or not named:
            return list(named or there)
        return [name for name in there if any(_same_model(name, word) for word in named)]

    @property
    def instances(self) -> list[Profile]:
        """The MIG profiles of its alternatives, on those of its models that support MIG."""
        cut = [model for name in self.models if (model := find_gpu_model(name)) is not None]
        found = [find_profile(model, scenario) for model in cut for scenario in self.filled["mig-profile"]]
        return [profile for profile in found if profile is not None]

    def against(self, key: str, reason: str, fix: str) -> Problem:
        """A problem with the value of `key`."""
        text = value_text(self.filled[key], fields_by_key()[key].stated.between)
        return Problem(key, show(text), reason, fix)


Rule = Callable[[Case], Problem | None]


def contradictions(stated: Mapping[str, Any], facts: Facts) -> tuple[Problem, ...]:
    """One problem for each violated rule. `stated`: typed values by annotation (`reading.read`)."""
    case = Case(stated, infer(stated, facts), facts)
    found = [rule(case) for rule in RULES]
    return tuple(problem for problem in found if problem is not None)


# --- class ----------------------------------------------------------------------------------------


def objective_of_class(case: Case) -> Problem | None:
    """`objective-s`, `ttft-objective-s` and `itl-objective-s` are for latency-critical work only."""
    declared = sorted(key for key in PROMISES if case[key] is not None)
    if not declared or case["slo-class"] == SloClass.LATENCY_CRITICAL:
        return None
    fix = f"slo-class is {value_text(case['slo-class'])}; set it to latency-critical, or leave the objective out"
    return case.against(declared[0], "is an objective of work that is not latency-critical", fix)


def sheltered_class(case: Case) -> Problem | None:
    """Latency-critical work is not `preemptible`: its pods are never evicted."""
    if not case["preemptible"] or case["slo-class"] != SloClass.LATENCY_CRITICAL:
        return None
    fix = "its pods are never evicted; set another slo-class, or leave preemptible out"
    return case.against("preemptible", "is declared for latency-critical work", fix)


# --- gang and shape -------------------------------------------------------------------------------


def minimum_above_members(case: Case) -> Problem | None:
    """`min-members` is at most `members`."""
    if case["min-members"] <= case["members"]:
        return None
    whose = "members is" if "members" in case.stated else "the number of its pods is"
    return case.against("min-members", "is above members", f"{whose} {case['members']:,}; write at most that")


def members_of_pods(case: Case) -> Problem | None:
    """`members` equals the number of pods that the controller declares; an elastic gang may have fewer at times."""
    pods = case.facts.members
    if not pods or case["members"] == pods or case["min-members"] <= pods < case["members"]:
        return None
    fix = f"its controller declares {pods:,}; leave members out, or change the controller"
    return case.against("members", "is not the number of its pods", fix)


def one_shape(case: Case) -> Problem | None:
    """Each member gets whole GPUs, a share of one, or a MIG instance: only one of the three is declared."""
    asked = [key for key in SHAPES if key in case.stated and (key != "gpu-milli" or case.share)]
    if len(asked) < 2:
        return None
    return case.against(asked[0], f"is declared together with {asked[1]}", "keep one of the two")


def shape_of_pods(case: Case) -> Problem | None:
    """The declared shape equals the request of one pod."""
    profile, gpus = pod_profile(case.facts), case.facts.gpus_per_member
    if profile and profile not in case["mig-profile"]:
        key = next(key for key in SHAPES if key in case.stated)
        return case.against(key, "is not what its pods request", f"one pod requests {profile}; leave it out")
    if profile or not gpus or case.share or (not case.parts and case["gpus-per-member"] == gpus):
        return None
    fix = f"one pod requests {gpus:,} whole GPUs; leave it out, or change the request"
    key = "mig-profile" if case.parts else "gpus-per-member"
    return case.against(key, "is not what its pods request", fix)


def share_alone(case: Case) -> Problem | None:
    """A share of a GPU is only for a gang of one member."""
    if not case.share or case["members"] == 1:
        return None
    fix = f"it has {case['members']:,}; request a MIG profile or whole GPUs"
    return case.against("gpu-milli", "is a share, but the gang has several members", fix)


def share_by_trust(case: Case) -> Problem | None:
    """A share of a GPU needs `trust`, because hardware does not isolate shares from each other."""
    if not case.share or case["trust"] != Trust.UNTRUSTED:
        return None
    fix = "set trust to trusted if the owner of the cluster vouches for it, or request a MIG profile"
    return case.against("gpu-milli", "is a share for untrusted work", fix)


def shared_whole_gpus(case: Case) -> Problem | None:
    """`share` is for up to 4 whole GPUs with `trust`, outside NVLink islands, of work that is not latency-critical."""
    if "share" not in case.stated or case["share"] == Share.NEVER:
        return None
    gpus = case["members"] * case["gpus-per-member"]
    if case["slo-class"] == SloClass.LATENCY_CRITICAL:
        reason, fix = "is declared for latency-critical work", "a neighbour delays its requests; set another slo-class"
    elif case.parts:
        reason, fix = "is declared for a part of a GPU", "it is for work that requests whole GPUs"
    elif needs_island(case.filled):
        reason, fix = "is declared for work that needs an NVLink island", "all its GPUs wait for the slowest of them"
    elif gpus > MOST_SHARED_GPUS:
        reason, fix = f"is declared for more than {MOST_SHARED_GPUS} GPUs", f"it has {gpus:,}"
    elif case["trust"] == Trust.UNTRUSTED:
        reason, fix = "is declared for untrusted work", "set trust to trusted, or to across-tenants"
    else:
        return None
    return case.against("share", reason, f"{fix}, or leave share out")


def known_models(case: Case) -> Problem | None:
    """At least one model of `gpu-type` exists in the cluster."""
    if not case["gpu-type"] or not case.facts.gpu_models or case.models:
        return None
    fix = f"the cluster has {', '.join(case.facts.gpu_models)}"
    return case.against("gpu-type", "names no GPU model of the cluster", fix)


def profile_of_models(case: Case) -> Problem | None:
    """At least one `mig-profile` exists on a GPU model that the job may use."""
    if not case["mig-profile"] or not case.models or case.instances:
        return None
    fix = "; ".join(f"{name} has {_profiles(name)}" for name in case.models[:3])
    return case.against("mig-profile", "exists on no GPU model that it may use", fix)


def memory_of_models(case: Case) -> Problem | None:
    """`gpu-memory-gib` is at most the memory of a GPU, or of the MIG instance, on a model that the job may use."""
    wanted_gib = case["gpu-memory-gib"]
    if case["mig-profile"]:
        there_gb = [float(profile.memory_gb) for profile in case.instances]
    else:
        there_gb = [_memory_gb(name) for name in case.models]
    if not wanted_gib or not there_gb or max(there_gb) >= wanted_gib:
        return None
    fix = f"the largest has {max(there_gb):,.0f}"
    return case.against("gpu-memory-gib", "is more than any GPU or MIG instance that it may use has", fix)


def within_queue_limit(case: Case) -> Problem | None:
    """The gang, at its minimum width, is within the limit of its queue."""
    limit = case.facts.queue_limit_gpus
    gpus = case["min-members"] * case["gpus-per-member"] * case["gpu-milli"] / GPU_MILLI
    if case["mig-profile"]:
        gpus = ceil(case["min-members"] / MOST_SLICES)
    if limit is None or gpus <= limit:
        return None
    key = next((key for key in ("min-members", "members", "gpus-per-member") if key in case.stated), "members")
    fix = f"it needs {counted(gpus, 'GPU')} and its queue may hold {limit:,}, so it could never start"
    return case.against(key, "makes the gang wider than the limit of its queue", fix)


# --- place ----------------------------------------------------------------------------------------


def no_peers_by_mig(case: Case) -> Problem | None:
    """`topology` and `preferred-topology` are not island for MIG instances, which have no NVLink peer-to-peer."""
    for key in ("topology", "preferred-topology"):
        if case["mig-profile"] and case[key] == Domain.ISLAND:
            fix = "they have no NVLink peer-to-peer; request whole GPUs, or leave it out"
            return case.against(key, "is an NVLink island for MIG instances", fix)
    return None


def no_groups_on_parts(case: Case) -> Problem | None:
    """A `tensor-parallel` group has whole GPUs, never MIG instances or shares."""
    if case["tensor-parallel"] == 1 or not case.parts:
        return None
    fix = "they have no NVLink peer-to-peer; request whole GPUs, or leave it out"
    return case.against("tensor-parallel", "is a group of MIG instances or shares", fix)


def groups_fill_gang(case: Case) -> Problem | None:
    """`tensor-parallel` groups fill a member exactly, or the whole gang, which must then not be elastic."""
    group, per_member = case["tensor-parallel"], case["gpus-per-member"]
    if group == 1 or case.parts:
        return None
    if not spans_members(case.filled):
        cut, fix = per_member % group != 0, f"a member has {counted(per_member, 'GPU')}; write a divisor of it"
    elif case["min-members"] < case["members"]:
        cut, fix = True, "its groups span members, which can be removed; set min-members to members"
    else:
        gpus = case["members"] * per_member
        cut, fix = gpus % group != 0, f"the gang has {counted(gpus, 'GPU')}; write a divisor of it"
    return case.against("tensor-parallel", "leaves an incomplete group", fix) if cut else None


def groups_in_island(case: Case) -> Problem | None:
    """If a `tensor-parallel` group is wider than a member, `topology` is island or node."""
    if case.parts or not spans_members(case.filled) or case["topology"] in (Domain.ISLAND, Domain.NODE):
        return None
    fix = f"a group of {counted(case['tensor-parallel'], 'GPU')} spans members; write island, or leave it out"
    return case.against("topology", "lets a tensor-parallel group leave its NVLink island", fix)


def preference_is_narrower(case: Case) -> Problem | None:
    """`preferred-topology` is narrower than `topology`."""
    scenario, must = case["preferred-topology"], case["topology"]
    if scenario is None or must is None or SIZE[Domain(scenario)] < SIZE[must]:
        return None
    fix = f"topology is {must}; write a narrower domain, or leave it out"
    return case.against("preferred-topology", "is not narrower than topology", fix)


def one_value_per_label(case: Case) -> Problem | None:
    """`node-selector`, together with that of the pods, requires only one value of each label."""
    wanted: dict[str, str] = {}
    for label in case["node-selector"]:
        key, _, value = label.partition("=")
        if wanted.setdefault(key, value) != value:
            fix = f"no node has both {key}={wanted[key]} and {key}={value}; keep one of them"
            return case.against("node-selector", "matches no node", fix)
    return None


def write_within_interval(case: Case) -> Problem | None:
    """The write of a checkpoint (`checkpoint-write-s`) takes less time than the interval between two."""
    interval_s, write_s = case["checkpoint-interval-s"], case["checkpoint-write-s"]
    if interval_s is None or write_s is None or write_s < interval_s:
        return None
    fix = f"checkpoint-interval-s is {interval_s:g}, so none would ever be complete"
    return case.against("checkpoint-write-s", "is as long as the time between two checkpoints", fix)


RULES: tuple[Rule, ...] = (
    objective_of_class,
    sheltered_class,
    minimum_above_members,
    members_of_pods,
    one_shape,
    shape_of_pods,
    share_alone,
    share_by_trust,
    shared_whole_gpus,
    known_models,
    profile_of_models,
    memory_of_models,
    within_queue_limit,
    no_peers_by_mig,
    no_groups_on_parts,
    groups_fill_gang,
    groups_in_island,
    preference_is_narrower,
    one_value_per_label,
    write_within_interval,
)
"""All rules, in the order of the fields."""


def _same_model(name: str, word: str) -> bool:
    wanted, there = find_product(word), find_product(name)
    return name.lower() == word.lower() or (wanted is not None and there is not None and wanted.name == there.name)


def _profiles(name: str) -> str:
    model = find_gpu_model(name)
    return ", ".join(profile.name for profile in model.profiles) if model else "none"


def _memory_gb(name: str) -> float:
    """Memory of a model; infinite if unknown, so that no request is refused for it."""
    product = find_product(name)
    return float(product.memory_gb) if product else float("inf")
