"""One entry of the configuration of NVIDIA's device plugin: whether and how the GPUs of a node are shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

GPU = "nvidia.com/gpu"
TIME_SLICING, MPS, NONE = "time-slicing", "mps", "none"  # values of the label nvidia.com/gpu.sharing-strategy


class BadConfigError(ValueError):
    """The plugin ends with an error when it loads such an entry."""


@dataclass(frozen=True, slots=True)
class PluginConfig:
    """The part of an entry about whole GPUs."""

    strategy: str = NONE
    replicas: int = 1  # of each GPU
    renamed: bool = False  # they are offered as nvidia.com/gpu.shared
    single: bool = False  # failRequestsGreaterThanOne: a container may ask for one only; so under MPS, if not stated

    @property
    def resource(self) -> str:
        """The resource under which GPUs are offered."""
        return f"{GPU}.shared" if self.renamed else GPU


WHOLE = PluginConfig()


def plugin_config_of(text: str) -> PluginConfig:
    """The entry as the plugin understands it; an empty one is `WHOLE`. MPS comes before time slicing.

    Raises BadConfigError.
    """
    try:
        parsed = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise BadConfigError(f"not YAML: {error}") from error
    sharing = parsed.get("sharing") or {} if isinstance(parsed, dict) else None
    if not isinstance(sharing, dict):
        raise BadConfigError("not a configuration")
    found = WHOLE
    for key, strategy in (("timeSlicing", TIME_SLICING), ("mps", MPS)):
        if key in sharing:
            found = _shared(sharing[key], strategy)
    return found


def _shared(given: Any, strategy: str) -> PluginConfig:
    resources = given.get("resources") if isinstance(given, dict) else None
    if not isinstance(resources, list) or not resources:
        raise BadConfigError("no resources specified")
    found = WHOLE
    for each in resources:
        replicas = each.get("replicas") if isinstance(each, dict) and each.get("name") else None
        if not isinstance(replicas, int) or replicas < 2:
            raise BadConfigError("number of replicas must be >= 2, of a named resource")
        if each["name"] == GPU:
            single = given.get("failRequestsGreaterThanOne", strategy == MPS)
            found = PluginConfig(strategy, replicas, bool(given.get("renameByDefault")), bool(single))
    return found
