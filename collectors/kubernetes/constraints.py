"""Constraints of pods on nodes as labels of the snapshot: selectors, required affinity, and taints.

Every distinct requirement of a pod, whatever its form, becomes one label of the snapshot; a node has the label if it
meets the requirement. A selector is a set of labels requested together. Neither has a limit: each costs one bit for
each node, and unused ones are forgotten (`clear`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2s

import numpy as np

from autopilot.core.model.identity import OF_NODES
from autopilot.core.model.snapshot import Bools, LabelBits
from collectors.kubernetes.wire import Budget, Expression, Node, NodeSelector, PodSpec, Taint, Term, Toleration

LONGEST_NAME = 500
"""Longest name of a label; the rest of a longer one is a digest."""

_PLAIN = re.compile(r"[A-Za-z0-9._-]*")

IGNORED_TAINTS = ("nvidia.com/gpu", "node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints without a meaning for work: that of GPU nodes, and those from a node's state."""


class NodeIndex:
    """Nodes in the order of their rows, and the nodes with each value of a label."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self._values: dict[str, dict[str, list[int]]] = {}
        self._names = {each.metadata.name: [row] for row, each in enumerate(nodes)}

    def values(self, key: str) -> Mapping[str, list[int]]:
        """Rows by value of a label."""
        found = self._values.get(key)
        if found is None:
            found = self._values[key] = defaultdict(list)
            for row, each in enumerate(self.nodes):
                value = (each.metadata.labels or {}).get(key)
                if value is not None:
                    found[value].append(row)
        return found

    def having(self, key: str, value: str) -> Bools:
        """Nodes with this value of the label."""
        return self._mask(self.values(key).get(value, ()))

    def where(self, meets: Callable[[Node], bool]) -> Bools:
        """Nodes meeting a condition."""
        return np.fromiter(map(meets, self.nodes), np.bool_, len(self.nodes))

    def selected(self, selector: NodeSelector) -> Bools:
        """Nodes meeting one of the terms."""
        mask = np.zeros(len(self.nodes), np.bool_)
        for term in selector.node_selector_terms or ():
            mask |= self._term(term)
        return mask

    def _term(self, term: Term) -> Bools:
        mask = np.full(len(self.nodes), bool(term.match_expressions or term.match_fields))  # an empty term has none
        for each in term.match_expressions or ():
            mask &= self._expression(each, self.values(each.key))
        for each in term.match_fields or ():
            mask &= self._expression(each, self._names if each.key == "metadata.name" else {})
        return mask

    def _expression(self, asked: Expression, rows: Mapping[str, Sequence[int]]) -> Bools:
        """Nodes meeting one requirement. `rows`: nodes by value of its label."""
        if asked.operator == "In":
            return self._mask([row for value in dict.fromkeys(asked.values or ()) for row in rows.get(value, ())])
        known = self._mask([row for each in rows.values() for row in each])
        meets = {value: _meets({asked.key: value}, asked) for value in rows}
        found = self._mask([row for value, each in rows.items() if meets[value] for row in each])
        return found | ~known if _meets({}, asked) else found

    def _mask(self, rows: Sequence[int]) -> Bools:
        mask = np.zeros(len(self.nodes), np.bool_)
        mask[list(rows)] = True
        return mask


Meets = Callable[[NodeIndex], Bools]
"""Nodes meeting a requirement. Shape [nodes]."""


@dataclass(slots=True)
class Constraints:
    """All requirements and selectors of work so far, in the order of their numbers."""

    labels: dict[str, int] = field(default_factory=dict)
    selectors: dict[tuple[int, ...], int] = field(default_factory=lambda: {(): 0})
    version: int = 0
    _meets: list[Meets] = field(default_factory=list)
    _index: NodeIndex | None = None
    _bits: LabelBits = field(default_factory=lambda: np.empty((0, 0), np.uint8))
    _done: int = 0  # labels in `_bits`

    def clear(self) -> None:
        """Forget everything: all work is about to be read anew."""
        self.labels, self.selectors, self._meets, self._index = {}, {(): 0}, [], None
        self.version += 1

    def number(self, asked: Iterable[tuple[str, Meets]]) -> int:
        """The number of the selector with these requirements, each with its name."""
        numbers = tuple(sorted({self._label(name, meets) for name, meets in asked}))
        found = self.selectors.get(numbers)
        if found is None:
            found = self.selectors[numbers] = len(self.selectors)
            self.version += 1
        return found

    def _label(self, name: str, meets: Meets) -> int:
        if len(name) > LONGEST_NAME:
            name = f"{name[:LONGEST_NAME]}... {blake2s(name.encode(), digest_size=8).hexdigest()}"
        found = self.labels.get(name)
        if found is None:
            found = self.labels[name] = len(self.labels)
            self._meets.append(meets)
        return found

    def of_nodes(self, index: NodeIndex) -> LabelBits:
        """Requirements met by each node, as `NodeTable.labels`. `index`: the same object for the same nodes."""
        if index is not self._index:
            self._index, self._done = index, 0
            self._bits = np.empty((len(index.nodes), 0), np.uint8)
        if self._done < len(self._meets):
            wide = np.zeros((len(index.nodes), -(-len(self._meets) // 8)), np.uint8)
            wide[:, : self._bits.shape[1]] = self._bits
            for number in range(self._done, len(self._meets)):
                wide[:, number >> 3] |= self._meets[number](index).astype(np.uint8) << (number & 7)
            self._bits, self._done = wide, len(self._meets)
        return self._bits


def asked_by(
    spec: PodSpec, taints: Iterable[Taint], more: Iterable[str] = (), kinds: Iterable[tuple[str, Meets]] = ()
) -> dict[str, Meets]:
    """Requirements of a pod on its nodes, by name.

    `taints` are those of all nodes, `more` further labels as `key=value`, `kinds` further requirements by name.
    """
    asked: dict[str, Meets] = dict(kinds)
    for key, value in (spec.node_selector or {}).items():
        asked[f"{key}={value}"] = _has(key, value)
    for text in more:
        key, _, value = text.partition("=")
        asked[text] = _has(key, value)
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    if affinity is not None and affinity.required is not None and affinity.required.node_selector_terms:
        asked[_selector_text(affinity.required)] = _selects(affinity.required)
    for taint in taints:
        if not tolerates(spec.tolerations, taint):
            asked[f"{OF_NODES}without taint {_taint_text(taint)}"] = _without(taint)
    return asked


def restricting(taint: Taint) -> bool:
    """True for a taint that keeps some work away and some not."""
    return taint.effect in {"NoSchedule", "NoExecute"} and not taint.key.startswith(IGNORED_TAINTS)


def tolerates(tolerations: list[Toleration] | None, taint: Taint) -> bool:
    """True if one of the tolerations matches the taint."""
    return any(
        (not each.effect or each.effect == taint.effect)
        and (each.key == taint.key or (not each.key and each.operator == "Exists"))
        and (each.operator == "Exists" or each.value == taint.value)
        for each in tolerations or ()
    )


def meets_labels(node: Node, labels: dict[str, str] | None) -> bool:
    """True for a node with all the labels."""
    return all(node.metadata.label(key) == value for key, value in (labels or {}).items())


def on_nodes(meets: Callable[[Node], bool]) -> Meets:
    """A requirement judged node by node."""
    return lambda index: index.where(meets)


def _has(key: str, value: str) -> Meets:
    return lambda index: index.having(key, value)


def _without(taint: Taint) -> Meets:
    same = (taint.key, taint.value, taint.effect)
    return on_nodes(lambda node: all((each.key, each.value, each.effect) != same for each in node.spec.taints or ()))


def _selects(selector: NodeSelector) -> Meets:
    return lambda index: index.selected(selector)


def _meets(labels: dict[str, str], asked: Expression) -> bool:
    """One requirement against labels; an unknown operator is not met."""
    value, values = labels.get(asked.key), asked.values or []
    if asked.operator == "In":
        return value in values
    if asked.operator == "NotIn":
        return value not in values
    if asked.operator == "Exists":
        return value is not None
    if asked.operator == "DoesNotExist":
        return value is None
    if asked.operator in {"Gt", "Lt"} and value is not None and values:
        has, bound = _whole(value), _whole(values[0])
        if has is not None and bound is not None:
            return has > bound if asked.operator == "Gt" else has < bound
    return False


def _whole(text: str) -> int | None:
    """A whole number as the scheduler reads it, an int64; None for any other text."""
    return int(text) if text.isdecimal() and len(text) < 19 else None


def selects_labels(labels: dict[str, str], match: dict[str, str] | None, asked: Iterable[Expression]) -> bool:
    """True for labels that meet a label selector."""
    return all(labels.get(key) == value for key, value in (match or {}).items()) and all(
        _meets(labels, each) for each in asked
    )


def _selector_text(selector: NodeSelector) -> str:
    """A selector in words: `zone in (a,b) & disk exists | ...`."""
    terms = []
    for term in selector.node_selector_terms or ():
        parts = [*(term.match_expressions or ()), *(term.match_fields or ())]
        terms.append(
            " & ".join(f"{each.key} {each.operator} ({','.join(map(_quoted, each.values or []))})" for each in parts)
        )
    return " | ".join(terms)


def _quoted(value: str) -> str:
    """A value in a name: any text but a value of a label is quoted, so that no two selectors have one name."""
    return value if _PLAIN.fullmatch(value) else repr(value)


def _taint_text(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}"


def budget_selects(budget: Budget, labels: Mapping[str, str]) -> bool:
    """True if the budget covers pods with these labels; one without a selector covers none."""
    selector = budget.spec.selector
    if selector is None:
        return False
    return selects_labels(dict(labels), selector.match_labels, selector.match_expressions or ())
