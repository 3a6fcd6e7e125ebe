"""Switches (`topology.conf`, topology/tree) and the choice of nodes below them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from autopilot.core.model.errors import InputError
from simulator.baselines.slurm.hostlist import expand
from simulator.baselines.slurm.model import members, node_set


@dataclass(frozen=True, slots=True)
class Tree:
    """Bit sets of nodes below each switch; a level holds the switches of equal height, leaves first."""

    levels: tuple[tuple[int, ...], ...]

    @property
    def leaves(self) -> tuple[int, ...]:
        """The nodes of each leaf switch."""
        return self.levels[0]


def parse(text: str, names: Sequence[str], where: str = "topology.conf") -> Tree:
    """Read the switches. Raises `InputError` for an undefined switch."""
    rows: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        words = dict(word.partition("=")[::2] for word in shlex.split(line.partition("#")[0]))
        record = {key.lower(): value for key, value in words.items()}
        if "switchname" in record:
            rows[record["switchname"]] = record
    place = {name: k for k, name in enumerate(names)}
    known: dict[str, tuple[int, int]] = {}

    def below(name: str) -> tuple[int, int]:
        """(height, nodes) of a switch."""
        if name not in known:
            if name not in rows:
                raise InputError(f"{where}: switch {name!r} is named and not defined; add a line SwitchName={name}")
            under = [below(each) for each in expand(rows[name].get("switches", ""))]
            nodes = node_set(place[each] for each in expand(rows[name].get("nodes", "")) if each in place)
            for _, bits in under:
                nodes |= bits
            known[name] = (1 + max(height for height, _ in under) if under else 0, nodes)
        return known[name]

    top = max((below(name)[0] for name in rows), default=0)
    levels = tuple(tuple(known[name][1] for name in rows if known[name][0] == height) for height in range(top + 1))
    return Tree(levels if rows else (((1 << len(names)) - 1,),))


def within(tree: Tree, fitting: Sequence[int], needs: int) -> list[int] | None:
    """Nodes for a job, from the lowest switch with enough of them, the one with the fewest; None without one.

    The first leaf is of this switch: the smallest sufficient one, else the largest. The rest comes from any leaf,
    by the same rule, of equal ones from the nearest. Lowest numbers in a leaf.
    """
    fits = node_set(fitting)
    for level in tree.levels:
        enough = [bits & fits for bits in level if (bits & fits).bit_count() >= needs]
        if enough:
            return _leaves(tree, fits, min(enough, key=int.bit_count), needs)
    return None


def _leaves(tree: Tree, fits: int, switch: int, needs: int) -> list[int]:
    leaves = [bits & fits for bits in tree.leaves if bits & fits]
    chosen: list[int] = []
    while len(chosen) < needs:
        left, bits = needs - len(chosen), node_set(chosen)
        usable = leaves if chosen else [leaf for leaf in leaves if leaf & switch]
        enough = [leaf for leaf in usable if leaf.bit_count() >= left]
        near = {leaf: _height(tree, leaf | bits) for leaf in usable}
        if enough:
            best = min(enough, key=lambda leaf: (leaf.bit_count(), near[leaf]))
        else:
            best = min(usable, key=lambda leaf: (-leaf.bit_count(), near[leaf]))
        chosen += list(members(best))[:left]
        leaves.remove(best)
    return sorted(chosen)


def _height(tree: Tree, bits: int) -> int:
    """The level of the lowest switch above all these nodes."""
    return next((k for k, level in enumerate(tree.levels) if any(not bits & ~each for each in level)), len(tree.levels))


def leaf_count(tree: Tree, nodes: Sequence[int]) -> int:
    """Number of leaf switches of these nodes."""
    bits = node_set(nodes)
    return sum(bool(leaf & bits) for leaf in tree.leaves)
