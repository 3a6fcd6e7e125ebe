"""Policies by name: shipped ones and policy files, baselines, and policies registered by other packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.world import World
from autopilot.core.model.errors import InputError, nearest
from autopilot.core.model.policy import ACTIONS_WITH, Effect, Mode, Policy
from autopilot.core.model.policy.names import ClusterNames, check_names
from autopilot.policies.changing import changed_policy, read_changes
from autopilot.settings import GONE, load_policy, policy_names, shipped_policy
from simulator.baselines import BASELINES
from simulator.baselines.kueue import Kueue
from simulator.baselines.slurm.policy import Slurm
from simulator.baselines.static import Static
from simulator.plugins.registry import made, registered_names
from simulator.running.engine import Scheduler
from simulator.running.queue_limits import hold_limits
from simulator.world.cluster import Cluster


@dataclass(frozen=True, slots=True)
class PolicyValues:
    """Values of policy fields in a simulation, by path: `under` what a policy file sets, and `over` it."""

    under: Mapping[str, Any] = field(default_factory=dict)
    over: Mapping[str, Any] = field(default_factory=dict)

    def of(self, name: str) -> Policy:
        """The policy of a name or file with these values. Raises `InputError`."""
        return changed_policy(load_policy(name, self.under), self.over, "--policy-set")


def values_of(options: SimulateOptions, world: World) -> PolicyValues:
    """The values of policy fields for one call. Raises `InputError`, also if no policy of the autopilot runs."""
    names = options.policies or world.policies
    if options.policy_set and all(name in BASELINES or name in registered_names() for name in names):
        raise InputError(f"--policy-set: none of {', '.join(names)} is a policy of the autopilot; add one to --policy")
    return PolicyValues(world.policy, read_changes(options.policy_set, "--policy-set"))


SHIPPED = "autopilot"
"""The policy file of the autopilot in a simulation, the reference of comparisons."""


def check_policies(
    names: tuple[str, ...],
    where: str = "--policy",
    there: ClusterNames | None = None,
    values: PolicyValues | None = None,
) -> dict[str, Policy | None]:
    """The policies of a call, by their shown names; None for a baseline and a registered policy.

    `there` are the names of the cluster, None if not known yet; `values` are put under and on top of each policy.

    A policy file is shown under its own name, or under its path if that name is taken. Raises `InputError`, also for a
    policy without automatic starts: a simulation has no one to approve.
    """
    found: dict[str, Policy | None] = {}
    values = values or PolicyValues()
    for name in dict.fromkeys(names):
        if name in BASELINES:
            found[name] = None
        elif name in policy_names() or name in GONE or Path(name).suffix in {".yaml", ".yml"}:
            policy = values.of(name)
            if not policy.modes.auto(Effect.ADMIT):
                starts = ACTIONS_WITH[Effect.ADMIT][0]
                raise InputError(
                    f"{where}: {name}: modes.{starts}: {getattr(policy.modes, starts)} starts nothing in a simulation; "
                    f"it must be {Mode.AUTO} (a policy file with `base: {SHIPPED}` has it)"
                )
            if there is not None:
                check_names(policy, there, f"{where}: {name}")
            taken = policy.name in found or policy.name in BASELINES or policy.name in policy_names()
            found[name if taken else policy.name] = policy
        elif name in registered_names():
            made(name)
            found[name] = None
        else:
            acting = (each for each in policy_names() if shipped_policy(each).modes.auto(Effect.ADMIT))
            known = ", ".join((*acting, *BASELINES, *registered_names()))
            near = nearest(name, (*policy_names(), *BASELINES, *registered_names()))
            raise InputError(f"{where}: {name!r} is none of {known}, and no policy file (.yaml){near and '; ' + near}")
    return found


def scheduler_of(name: str, world: World, cluster: Cluster) -> Scheduler:
    """A baseline, with the tenants' quotas of the cluster file if it can use them, or a registered policy.

    No start of it exceeds a limit of a queue.
    """
    if name == "kueue":
        return Kueue(world.spec.queues)  # keeps the limits itself
    hold_limits(cluster, world.spec.queues)
    if name == "static":
        return Static(world.guaranteed_nodes)
    if name == "slurm":
        return Slurm(world.slurm, world.start_s)
    return BASELINES[name]() if name in BASELINES else made(name)
