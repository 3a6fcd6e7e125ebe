"""The common parts of the sections of the settings: their base class, and durations and addresses as field types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from autopilot.contract.sharing_configs import SHARING_WORD
from autopilot.core.capabilities.verbs import OPERATIONS
from autopilot.core.model.errors import InputError
from autopilot.core.model.units import parse_duration_s
from autopilot.service.listeners import parse_listen

T = TypeVar("T")


def fix_of(check: Callable[..., T], *given: Any) -> T:
    """The result of a check; its error as pydantic expects it."""
    try:
        return check(*given)
    except InputError as error:
        raise ValueError(str(error).rpartition("; ")[2]) from error


def _seconds(value: Any) -> Any:
    return fix_of(parse_duration_s, value) if isinstance(value, str) else value


def _listens(value: str) -> str:
    fix_of(parse_listen, value, "listen")
    return value


def _instruction(value: str) -> str:
    if value not in OPERATIONS:
        raise ValueError(f"write one of {', '.join(OPERATIONS)}")
    return value


def _address(value: str) -> str:
    from collectors.exporter import check_url

    fix_of(check_url, value, "address")
    return value.rstrip("/")


def is_this_machine(host: str | None) -> bool:
    """True if a message to a host stays on this machine."""
    return host in {"127.0.0.1", "::1", "localhost"}


def check_secure(value: str) -> str:
    """The address, if it is by HTTPS or on this machine; else `ValueError`."""
    parts = urlsplit(_address(value))
    if parts.scheme != "https" and not is_this_machine(parts.hostname):
        raise ValueError("write https://..., because credentials pass; http is for this machine alone")
    return value


def _origin(value: str) -> str:
    if urlsplit(check_secure(value).rstrip("/"))[2:] != ("", "", "") or "@" in value:
        raise ValueError("write scheme, host and port alone, for example https://autopilot.corp.net")
    return value.rstrip("/")


Seconds = Annotated[float, BeforeValidator(_seconds)]
InstructionKind = Annotated[str, AfterValidator(_instruction)]
Listen = Annotated[str, AfterValidator(_listens)]
Address = Annotated[str, AfterValidator(_address)]
SecureAddress = Annotated[str, AfterValidator(check_secure)]
"""By HTTPS, or on this machine; kept as it is written."""
Origin = Annotated[str, AfterValidator(_origin)]
SharingKey = Annotated[str, Field(pattern="^[-._a-zA-Z0-9]{1,63}$")]
"""A key of a ConfigMap that is also the value of a label."""
SharingText = Annotated[str, Field(pattern=SHARING_WORD)]
SharingConfigs = Annotated[
    dict[SharingKey, SharingText],
    Field(
        max_length=32,
        description="keys of the ConfigMap of NVIDIA's device plugin to which nodes may be turned, and what each does: "
        "whole, time-slicing-N or mps-N (N shares of a GPU), with -single where failRequestsGreaterThanOne is true, as "
        "MPS has it by default; renameByDefault must be false (docs/shared-gpus.md); empty: no node is turned",
    ),
]
"""Sharing by key."""
ProbeImage = Annotated[
    str,
    Field(
        max_length=500,
        description="image of a pod that asks for one share of a node just turned to sharing, and has to end with "
        "success before the node is opened, for example a CUDA sample; its rights: deploy/act/set_sharing-probe.yaml "
        "(docs/shared-gpus.md); empty: no pod is started",
    ),
]
"""An image; "" for none."""


PauseSecret = Annotated[
    Path | None,
    Field(
        description="file with the secret behind the tokens of programs that take pauses (docs/checkpoints.md#pauses); "
        "null: nothing is paused, and `isolate` only recommends",
    ),
]
"""A file; None for none."""


class Section(BaseModel):
    """A part of the tree. Unknown fields are errors, and nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
