"""Reading a YAML tree field by field: every error is one message with file, field, value and fix."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autopilot.core.model.errors import InputError, nearest, shown, unknown_name
from autopilot.policies.dialect import read_yaml

MOST_BYTES = 16 * 1024 * 1024


def load_yaml(path: Path, what: str) -> Fields:
    """The mapping in the YAML file `path`, in the dialect of policy files (no aliases, no duplicate keys).

    Raises `InputError` when it is missing or not a mapping.
    """
    try:
        # opening a pipe would wait for its writer
        if path.exists() and not path.is_file() and not path.is_dir():
            raise InputError(f"{path}: {what} is a pipe or a device; give a file")
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path}: {what} is larger than {MOST_BYTES // 1048576} MiB")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: {what} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    content = read_yaml(text, str(path))
    if content is None:
        raise InputError(f"{path}: {what} is empty")
    return Fields(content, str(path), "")


class Fields:
    """One mapping of a YAML tree, with its path; `done` refuses fields that were never read."""

    def __init__(self, content: object, source: str, path: str) -> None:
        self.source, self.path = source, path
        if not isinstance(content, Mapping):
            raise InputError(f"{self.where('')}: {shown(content)} is not a mapping of fields")
        self.content: dict[str, Any] = {str(key): value for key, value in content.items()}
        self.asked: list[str] = []

    def where(self, field: str) -> str:
        """`FILE: pools[0].nodes`."""
        dotted = ".".join(part for part in (self.path, field) if part)
        return f"{self.source}: {dotted}" if dotted else self.source

    def fail(self, field: str, fix: str) -> InputError:
        """The error of one field, with its value."""
        if field not in self.content:
            return InputError(f"{self.where(field)}: is missing; {fix}")
        return InputError(f"{self.where(field)}: {shown(self.content[field])} is not allowed; {fix}")

    def unknown(self, field: str, what: str, known: Iterable[str]) -> InputError:
        """The error of a field whose value names an unknown object: suggests the nearest name, or lists those that
        exist.
        """
        return self.fail(field, f"{what}; {unknown_name(self.content.get(field), known)}")

    def get(self, field: str) -> Any:
        """The raw value, None when it is missing."""
        self.asked.append(field)
        return self.content.get(field)

    def text(self, field: str, default: str | None = None, allowed: tuple[str, ...] = ()) -> str:
        """A non-empty text, out of `allowed` if given; required when `default` is None."""
        value = self.get(field)
        if value is None and default is not None:
            return default
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not value.strip() or len(value) > 253:
            raise self.fail(field, "write a name")
        if allowed and value not in allowed:
            near = nearest(value, allowed)
            raise self.fail(field, f"write one of {', '.join(allowed)}{near and '; ' + near}")
        return value.strip()

    def whole(self, field: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number in [low, high]; required when `default` is None."""
        value = self.get(field)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(field, f"write a whole number from {low:,} to {high:,}")
        return value

    def number(self, field: str, low: float, high: float, default: float, *, above: bool = False) -> float:
        """A finite number in [low, high], or above `low` with `above`."""
        value = self.get(field)
        if value is None:
            return default
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not good or not low <= value <= high or (above and value == low):
            raise self.fail(
                field,
                f"write a number {'above' if above else 'from'} {low:g} {'and at most' if above else 'to'} {high:g}",
            )
        return float(value)

    def flag(self, field: str, default: bool) -> bool:
        """A value that is true or false."""
        value = self.get(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(field, "write true or false")
        return value

    def each(self, field: str) -> Iterator[Fields]:
        """The mappings of a list; empty when the field is missing."""
        value = self.get(field)
        if value is None:
            return
        if not isinstance(value, list):
            raise self.fail(field, "write a list")
        for index, item in enumerate(value):
            yield Fields(item, self.source, ".".join(part for part in (self.path, f"{field}[{index}]") if part))

    def done(self) -> None:
        """Refuse every field that was not read."""
        for field in self.content:
            if field not in self.asked:
                raise InputError(f"{self.where(field)}: no such field; {unknown_name(field, self.asked)}")
