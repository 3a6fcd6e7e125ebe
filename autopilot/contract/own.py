"""Names of our own objects in the namespace of the service."""

from __future__ import annotations

INBOX_MAP, MEMORY_MAP = "gpu-autopilot-inbox", "gpu-autopilot-memory"
"""ConfigMaps of the leader; a large memory has further ones, `gpu-autopilot-memory-a-0` and so on."""
WATCHDOG = "gpu-autopilot-watchdog"
"""Service account of the watchdog, its roles, and the ConfigMap of its mark."""
PROBE = "gpu-autopilot-fence-probe"
"""A ConfigMap in dry runs only."""
