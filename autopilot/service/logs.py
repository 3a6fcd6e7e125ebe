"""Structured logs: one event a line on standard error, as JSON or for people. Secrets are never written."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from autopilot.printable import printable
from autopilot.service.settings import Log, LogFormat

SECRET_NAMES = re.compile(r"token|secret|password|authorization|cookie", re.IGNORECASE)
BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]+")
HIDDEN = "***"


def hide_secrets(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace the values of fields with secret names, credentials inside texts, and control characters."""
    for key, value in event.items():
        if SECRET_NAMES.search(key) and not key.endswith("_file"):
            event[key] = HIDDEN
        elif isinstance(value, str):
            lines = "\n\t" if key in {"exception", "stack"} else ""
            event[key] = printable(BEARER.sub(rf"\1 {HIDDEN}", value), lines)
    return event


def set_up_logs(settings: Log) -> None:
    """Send the events of this process, and of the libraries in it, to standard error."""
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        hide_secrets,
    ]
    if settings.format == LogFormat.JSON:
        last: Any = structlog.processors.JSONRenderer()
    else:
        last = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last]
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for noisy, least in (("uvicorn", logging.ERROR), ("uvicorn.error", logging.ERROR), ("urllib3", logging.WARNING)):
        logging.getLogger(noisy).setLevel(max(level, least))  # uvicorn warns of each request other than HTTP
