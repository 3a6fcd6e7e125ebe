"""Constraints of pods on nodes as labels of the snapshot: selectors, required affinity, and taints.

The snapshot knows labels as bits: a node has some, and work asks for some. Every distinct requirement of a pod becomes
one such label, whatever its form; a node has the label where it meets the requirement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from autopilot.core.model.identity import OF_NODES
from collectors.kubernetes.wire import Budget, Expression, Node, NodeSelector, PodSpec, Taint, Term, Toleration

MOST = 63
"""Labels that the snapshot has room for."""

Meets = Callable[[Node], bool]

IGNORED_TAINTS = ("nvidia.com/gpu", "node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints that say nothing about which work may run: that of GPU nodes, and those that a node's state brings."""


@dataclass(slots=True)
class Constraints:
    """The requirements that were met so far, in the order of their bits."""

    names: list[str] = field(default_factory=list)
    _bits: dict[str, int] = field(default_factory=dict)
    _meets: list[Meets] = field(default_factory=list)
    version: int = 0

    def bit(self, name: str, meets: Meets) -> int | None:
        """The bit of a requirement; None where there is no room for another one."""
        known = self._bits.get(name)
        if known is not None:
            return known
        if len(self.names) >= MOST:
            return None
        self._bits[name] = len(self.names)
        self.names.append(name)
        self._meets.append(meets)
        self.version += 1
        return self._bits[name]

    def of_node(self, node: Node) -> int:
        """The requirements that a node meets, as a bit set."""
        return sum(1 << bit for bit, meets in enumerate(self._meets) if meets(node))

    def of_pod(
        self, spec: PodSpec, taints: Iterable[Taint], more: Iterable[str] = (), kinds: Iterable[tuple[str, Meets]] = ()
    ) -> int | None:
        """What a pod asks of its nodes, as a bit set; None where there are more requirements than bits.

        `taints` are those of all nodes, `more` further labels as `key=value`, `kinds` further requirements by name.
        """
        asked: list[tuple[str, Meets]] = [*kinds]
        for key, value in (spec.node_selector or {}).items():
            asked.append((f"{key}={value}", _has(key, value)))
        for text in more:
            key, _, value = text.partition("=")
            asked.append((text, _has(key, value)))
        affinity = spec.affinity.node_affinity if spec.affinity is not None else None
        if affinity is not None and affinity.required is not None and affinity.required.node_selector_terms:
            asked.append((_selector_text(affinity.required), _selects(affinity.required)))
        asked += [
            (f"{OF_NODES}without taint {_taint_text(taint)}", _without(taint))
            for taint in taints
            if not tolerates(spec.tolerations, taint)
        ]
        bits = [self.bit(name, meets) for name, meets in dict(asked).items()]
        if None in bits:
            return None
        return sum(1 << bit for bit in set(bits) if bit is not None)


def restricting(taint: Taint) -> bool:
    """True for a taint that keeps some work away and some not."""
    return taint.effect in {"NoSchedule", "NoExecute"} and not taint.key.startswith(IGNORED_TAINTS)


def tolerates(tolerations: list[Toleration] | None, taint: Taint) -> bool:
    """True where one of the tolerations matches the taint."""
    return any(
        (not each.effect or each.effect == taint.effect)
        and (each.key == taint.key or (not each.key and each.operator == "Exists"))
        and (each.operator == "Exists" or each.value == taint.value)
        for each in tolerations or ()
    )


def meets_labels(node: Node, labels: dict[str, str] | None) -> bool:
    """True where a node has all the labels."""
    return all(node.metadata.label(key) == value for key, value in (labels or {}).items())


def _has(key: str, value: str) -> Meets:
    return lambda node: node.metadata.label(key) == value and key in (node.metadata.labels or {})


def _without(taint: Taint) -> Meets:
    same = (taint.key, taint.value, taint.effect)
    return lambda node: all((each.key, each.value, each.effect) != same for each in node.spec.taints or ())


def _selects(selector: NodeSelector) -> Meets:
    return lambda node: any(_term(node, term) for term in selector.node_selector_terms or ())


def _term(node: Node, term: Term) -> bool:
    labels, name = node.metadata.labels or {}, {"metadata.name": node.metadata.name}
    if not term.match_expressions and not term.match_fields:
        return False  # an empty term matches nothing
    return all(_meets(labels, each) for each in term.match_expressions or ()) and all(
        _meets(name, each) for each in term.match_fields or ()
    )


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
    """True where labels meet a label selector."""
    return all(labels.get(key) == value for key, value in (match or {}).items()) and all(
        _meets(labels, each) for each in asked
    )


def _selector_text(selector: NodeSelector) -> str:
    """A selector in words: `zone in (a,b) & disk exists | ...`."""
    terms = []
    for term in selector.node_selector_terms or ():
        parts = [*(term.match_expressions or ()), *(term.match_fields or ())]
        terms.append(" & ".join(f"{each.key} {each.operator} ({','.join(each.values or [])})" for each in parts))
    return " | ".join(terms)


def _taint_text(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}"


def budget_selects(budget: Budget, labels: Mapping[str, str]) -> bool:
    """True where the budget covers pods with these labels; one without a selector covers none."""
    selector = budget.spec.selector
    if selector is None:
        return False
    return selects_labels(dict(labels), selector.match_labels, selector.match_expressions or ())
