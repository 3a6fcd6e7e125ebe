"""The code of a registered policy: the digest of a version, and its passage to another process.

The digest follows the code as it is loaded, not the files: the policy and the functions, classes and values in
its reach, in its own and in other modules. Code of installed libraries counts by name and version.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import joblib

from autopilot.core.model.errors import InputError
from simulator.plugins.registry import Make, maker, register

OURS = ("autopilot", "collectors", "models", "simulator", "actuators", "apiserver")
"""Packages whose source is part of every digest anyway."""
_PYTHON = tuple(str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib"))
_LIBRARIES = {"site-packages", "dist-packages"}
_HEAP_TYPE = 1 << 9  # a class that Python code made (Py_TPFLAGS_HEAPTYPE)
_LEFT_OUT = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__firstlineno__", "__static_attributes__", "__annotations__", "__module__"}
)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))


def code_digest(name: str) -> str:
    """Of the registered policy `name`, as it is loaded now; "" if no policy of this name is registered."""
    make = maker(name)
    return "" if make is None else _Walk(make).digest()


def packed(name: str) -> bytes | None:
    """The registered policy for `unpack` in another process, with the code in its reach; None if there is none.

    Raises `InputError` if it cannot be sent.
    """
    make = maker(name)
    if make is None:
        return None
    walk = _Walk(make)
    walk.digest()
    try:
        with _by_value(walk.modules):
            found: bytes = cloudpickle.dumps(make)
    except Exception as error:
        raise InputError(
            f"policy {name}: it cannot be sent to other processes: {type(error).__name__}: {error}; run it with one "
            "worker, or keep open files, locks and the like out of its module and its attributes"
        ) from error
    return found


def unpack(name: str, code: bytes) -> None:
    """Register a policy packed by another process."""
    register(name, cloudpickle.loads(code))


@contextmanager
def _by_value(modules: Iterable[types.ModuleType]) -> Iterator[None]:
    """Their functions and classes are sent whole, not by name: another process may have other files, or none."""
    new = [each for each in modules if each.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for each in new:
        cloudpickle.register_pickle_by_value(each)
    try:
        yield
    finally:
        for each in new:
            cloudpickle.unregister_pickle_by_value(each)


class _Walk:
    """Visits everything in the reach of a policy, each object once."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._home = str(getattr(make, "__module__", "")).partition(".")[0]
        self._seen: dict[int, int] = {}
        self._kept: list[object] = []  # ids stay unique while the objects live
        self.modules: list[types.ModuleType] = []

    def digest(self) -> str:
        """Sixteen hexadecimal digits."""
        return hashlib.sha256("\n".join(self._parts(self._make)).encode()).hexdigest()[:16]

    def _parts(self, thing: Any) -> Iterator[str]:
        if isinstance(thing, _PLAIN):
            yield f"{type(thing).__name__} {thing!r}"
            return
        if not isinstance(thing, tuple | frozenset):  # whether two equal ones are the same object is chance
            if id(thing) in self._seen:
                yield f"again {self._seen[id(thing)]}"
                return
            self._seen[id(thing)] = len(self._seen)
            self._kept.append(thing)
        if isinstance(thing, types.ModuleType):
            yield f"module {thing.__name__} {getattr(thing, '__version__', '')}"
        elif isinstance(thing, types.CodeType):
            yield from self._of_code(thing)
        elif isinstance(thing, Mapping):
            yield f"mapping {len(thing)}"
            for key, value in thing.items():
                yield from self._parts(key)
                yield from self._parts(value)
        elif isinstance(thing, set | frozenset):
            yield "set " + " ".join(sorted("/".join(_Walk(each).told(self)) for each in thing))
        elif isinstance(thing, tuple | list):
            yield f"{type(thing).__name__} {len(thing)}"
            for each in thing:
                yield from self._parts(each)
        else:
            yield from self._of_object(thing)

    def told(self, above: _Walk) -> list[str]:
        """The parts of one element of a set: its order does not matter."""
        self._home, self.modules = above._home, above.modules
        return list(self._parts(self._make))

    def _of_object(self, thing: Any) -> Iterator[str]:
        if inspect.isfunction(thing):
            yield from self._of_function(thing)
        elif isinstance(thing, type):
            yield from self._of_class(thing)
        elif (inner := _inner(thing)) is not None:
            yield type(thing).__name__
            yield from self._parts(inner)
        elif self._theirs(type(thing)):
            yield from self._parts(type(thing))
            slots = {name: getattr(thing, name) for name in _slots(type(thing)) if hasattr(thing, name)}
            yield from self._parts({**slots, **getattr(thing, "__dict__", {})})
        else:
            yield _by_state(thing)

    def _of_function(self, function: types.FunctionType) -> Iterator[str]:
        if not self._theirs(function):
            yield f"function {function.__module__}.{function.__qualname__}"
            return
        yield f"function {function.__name__}"
        yield from self._parts(function.__code__)
        yield from self._parts((function.__defaults__, function.__kwdefaults__, function.__dict__))
        yield from self._parts([_content(cell) for cell in function.__closure__ or ()])
        names = sorted(_names(function.__code__))
        for name in names:
            found = function.__globals__.get(name, sys.modules.get(name))
            if found is not None:
                yield name
                yield from self._named(found, names)

    def _named(self, found: object, names: Sequence[str]) -> Iterator[str]:
        """The names in a function; of a module of the policy's author also the parts used by the function."""
        yield from self._parts(found)
        if isinstance(found, types.ModuleType) and self._theirs(found):
            for each in names:
                if vars(found).get(each, found) is not found:
                    yield each
                    yield from self._named(vars(found)[each], [name for name in names if name != each])

    def _of_class(self, kind: type) -> Iterator[str]:
        if not self._theirs(kind):
            yield f"class {kind.__module__}.{kind.__qualname__}"
            return
        yield f"class {kind.__name__}"
        yield from self._parts(kind.__bases__)
        for name, value in vars(kind).items():
            if name not in _LEFT_OUT and not isinstance(value, types.GetSetDescriptorType | types.MemberDescriptorType):
                yield name
                yield from self._parts(value)

    def _of_code(self, code: types.CodeType) -> Iterator[str]:
        yield f"code {code.co_code.hex()} {code.co_names} {code.co_argcount} {code.co_kwonlyargcount} {code.co_flags}"
        yield from self._parts(code.co_consts)

    def _theirs(self, thing: Any) -> bool:
        """True if it is code of the policy's author: not ours, not of Python, not of an installed library."""
        name = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", None) or ""
        top = name.partition(".")[0]
        if top == "builtins":  # made by `exec` in a name space without a name
            return inspect.isfunction(thing) or (isinstance(thing, type) and bool(thing.__flags__ & _HEAP_TYPE))
        if top in OURS or top in sys.builtin_module_names:
            return False
        module = sys.modules.get(name)
        file = Path(getattr(module, "__file__", None) or "").resolve()
        installed = str(file).startswith(_PYTHON) or not _LIBRARIES.isdisjoint(file.parts)
        if installed and top not in {self._home, "__main__"}:
            return False
        if module is not None and name != "__main__" and module not in self.modules:
            self.modules.append(module)
        return True


def _inner(thing: object) -> object:
    """The content of a method, a property or a wrapper of the standard library; None for anything else."""
    if isinstance(thing, types.MethodType):
        return (thing.__func__, thing.__self__)
    if isinstance(thing, staticmethod | classmethod):
        return (thing.__func__,)
    if isinstance(thing, property):
        return (thing.fget, thing.fset, thing.fdel)
    if isinstance(thing, functools.partial | functools.partialmethod):
        return (thing.func, thing.args, thing.keywords)
    if isinstance(thing, functools.cached_property):
        return (thing.func,)
    if type(thing).__name__ == "_lru_cache_wrapper":
        return (getattr(thing, "__wrapped__", None),)
    return None


def _slots(kind: type) -> Iterator[str]:
    for each in kind.__mro__:
        slots = vars(each).get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def _names(code: types.CodeType) -> set[str]:
    """The names of globals and attributes in a function and in those inside it."""
    found = set(code.co_names)
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            found |= _names(each)
    return found


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _by_state(thing: object) -> str:
    """An object of a library by its type and content; by its type alone if it has no readable content."""
    kind = f"{type(thing).__module__}.{type(thing).__qualname__}"
    try:
        return f"{kind} {joblib.hash(thing)}"
    except Exception:  # noqa: BLE001 - whatever a library raises: a lock, a socket
        return kind
