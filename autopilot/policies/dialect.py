"""YAML as policy files use it: a small, strict and safe subset, the same for reading and writing.

Plain words follow YAML 1.2: only `true` and `false` are booleans (so that the mode `off` is the word off), `010` is ten
and `1:30` is a text. A key that occurs twice in one mapping is refused, and so are aliases, because both hide the value
in force. yaml is imported on first use, to keep the command line fast.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, ClassVar

from autopilot.core.model.errors import InputError

if TYPE_CHECKING:
    import yaml

LONGEST_NUMBER = 1000
"""Longest whole number in characters: a longer one is no plausible amount."""

TAG = "tag:yaml.org,2002:"
# Types of a plain word, tried in this order: the core schema of YAML 1.2, section 10.3.2.
PLAIN = (
    ("null", re.compile(r"^(~|null|Null|NULL|)$")),
    ("bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$")),
    ("int", re.compile(r"^([-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$")),
    ("float", re.compile(r"^([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan)$")),
)
KINDS = ("null", "bool", "int", "float", "str", "seq", "map")


def read_yaml(text: str, source: str) -> Any:
    """The content of a document, in dicts, lists, str, int, float, bool and None; None when it is empty.

    Raises `InputError` naming `source`, line and column.
    """
    import yaml

    try:
        return yaml.load(text, Loader=_loader())  # noqa: S506  # derived from SafeLoader, with fewer types
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        why = ", ".join(part for part in (error.context, error.problem) if part)
        raise InputError(f"{source}{where}: invalid YAML: {why}") from error
    except (yaml.YAMLError, ValueError) as error:  # a character or a number that the parser rejects
        raise InputError(f"{source}: invalid YAML: {' '.join(str(error).split())[:200]}") from error
    except RecursionError as error:
        raise InputError(f"{source}: invalid YAML: nested too deep") from error


def write_yaml(content: dict[str, Any]) -> str:
    """`content` as a document in the order given; `read_yaml` returns an equal one."""
    import yaml

    return yaml.dump(content, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=110)


@functools.cache
def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class Loader(yaml.SafeLoader):
        """SafeLoader without aliases and duplicate keys, and with the plain scalars of YAML 1.2."""

        yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  # as the base class declares it
        yaml_constructors: ClassVar[dict[Any, Any]] = {}

        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
                raise yaml.composer.ComposerError(None, None, "an alias (*name); write it out", mark)
            return super().compose_node(parent, index)

        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            """A merge key (`<<`) is treated as an ordinary key."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                if not isinstance(key, str):
                    problem = f"the key {key!r} is no text; quote it"
                    raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
                if key in seen:
                    problem = f"the key {key!r} occurs twice; keep one"
                    raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
                seen.add(key)
            return super().construct_mapping(node, deep)

    for kind in KINDS:
        Loader.add_constructor(TAG + kind, yaml.SafeLoader.yaml_constructors[TAG + kind])
    Loader.add_constructor(TAG + "int", _whole_number)
    Loader.add_constructor(TAG + "str", _text)
    Loader.add_constructor(None, yaml.SafeLoader.yaml_constructors[None])
    for kind, pattern in PLAIN:
        Loader.add_implicit_resolver(TAG + kind, pattern, None)
    return Loader


def _whole_number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    from yaml.constructor import ConstructorError

    text = str(loader.construct_scalar(node))
    if len(text) > LONGEST_NUMBER:
        problem = f"a number of {len(text):,} characters; write a smaller one, or quote a text"
        raise ConstructorError(None, None, problem, node.start_mark)
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


def _text(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    from yaml.constructor import ConstructorError

    text = str(loader.construct_scalar(node))
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ConstructorError(None, None, "half a character (a lone surrogate)", node.start_mark)
    return text


@functools.cache
def _dumper() -> type[yaml.SafeDumper]:
    import yaml

    class Dumper(yaml.SafeDumper):
        """SafeDumper that quotes words to which a YAML 1.1 or 1.2 parser would give another type."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        # the emitter escapes these line breaks between double quotes only; elsewhere they are lost
        rare = any(letter in value for letter in "\x85\u2028\u2029")
        return dumper.represent_scalar(TAG + "str", value, style='"' if rare else None)

    Dumper.add_representer(str, text)
    for kind, pattern in PLAIN:
        Dumper.add_implicit_resolver(TAG + kind, pattern, None)
    return Dumper
