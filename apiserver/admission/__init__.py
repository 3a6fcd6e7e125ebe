"""Admission: changes and refusals of a write before it is stored."""

from __future__ import annotations

from collections.abc import Callable

from apiserver.admission.base import Plugin
from apiserver.admission.namespaces import NamespaceLifecycle
from apiserver.admission.pods import DefaultTolerations, NodeTaints, ServiceAccounts

PLUGINS: tuple[Callable[[], Plugin], ...] = (  # in the order in which they are asked
    NamespaceLifecycle,
    ServiceAccounts,
    DefaultTolerations,
    NodeTaints,
)
