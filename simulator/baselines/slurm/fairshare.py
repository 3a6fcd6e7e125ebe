"""Usage of associations with decay, and their fair-share figures: Fair Tree, and the classic formula.

Source of the formulas: Slurm's pages on Fair Tree and on the multifactor plugin (22.05).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from simulator.baselines.slurm.accounts import ROOT, Accounts, Association
from simulator.baselines.slurm.config import Config


@dataclass(slots=True)
class Share:
    """One association in the tree: its usage in billing seconds, and its figures. `fair` is of users."""

    what: Association
    parent: Share | None = None
    children: list[Share] = field(default_factory=list)
    usage: float = 0.0
    norm_shares: float = 1.0
    level_shares: float = 1.0
    norm_usage: float = 0.0  # Fair Tree: its part of all usage, at the last tick
    effective: float | None = None  # of its parent's usage (Fair Tree); classic: None until it is asked for
    level_fs: float = inf
    fair: float = 1.0


class Shares:
    """The tree of associations with their usage."""

    def __init__(self, accounts: Accounts, config: Config) -> None:
        """Nobody used anything yet."""
        self._config = config
        self._of: dict[tuple[str, str], Share] = {}
        for key in accounts.associations:
            self._add(accounts, key)
        self.root = self._of.get((ROOT, "")) or Share(Association(ROOT))
        self.users = [each for each in self._of.values() if each.what.user]
        self._norms(self.root)
        self.settle()

    def _add(self, accounts: Accounts, key: tuple[str, str]) -> Share:
        if key not in self._of:
            what = accounts.associations[key]
            above = (what.account, "") if what.user else (what.parent, "")
            parent = self._add(accounts, above) if above in accounts.associations and above != key else None
            self._of[key] = share = Share(what, parent)
            if parent is not None:
                parent.children.append(share)
        return self._of[key]

    def _norms(self, share: Share) -> None:
        total = sum(_raw(child) for child in share.children) or 1
        for child in share.children:
            child.level_shares = _raw(child) / total
            child.norm_shares = share.norm_shares * child.level_shares
            self._norms(child)

    def of(self, account: str, user: str) -> Share | None:
        """The association of a user in an account, or of the account with ""; None if it is unknown."""
        return self._of.get((account, user))

    def use(self, account: str, user: str, amount: float) -> None:
        """Add usage to an association and everything above it."""
        share = self._of.get((account, user)) or self._of.get((account, ""))
        while share is not None:
            share.usage += amount
            share = share.parent

    def decay(self, factor: float) -> None:
        """Multiply all usage; under the classic formula the accounts' figures are taken here, the users' later."""
        for share in self._of.values():
            share.usage *= factor
        if not self._config.fair_tree:
            for share in self.users:
                share.effective = None
            self._accounts(self.root)

    def settle(self) -> None:
        """After the new usage: rank the users (Fair Tree)."""
        if self._config.fair_tree:
            ranks = _Ranks(len(self.users))
            ranks.walk(self.root.children, tied=False)
            for share in self._of.values():
                share.norm_usage = share.usage / self.root.usage if self.root.usage else 0.0
        else:
            self._accounts(self.root)

    def factor(self, account: str, user: str) -> float:
        """The fair-share factor of a user, 0 to 1; 0 if the association is unknown."""
        share = self._of.get((account, user))
        if share is None:
            return 0.0
        if not self._config.fair_tree:
            share.fair = self.classic(share)
        return share.fair

    def classic(self, share: Share) -> float:
        """The classic figure of an association. A user's effective usage is taken once between two ticks."""
        if share.effective is None:
            share.effective = self._effective(share)
        if share.parent is None:
            return float(2.0 ** -(1.0 / self._config.dampening))
        if not share.norm_shares:
            return 0.0
        return float(2.0 ** -((share.effective / share.norm_shares) / self._config.dampening))

    def _accounts(self, share: Share) -> None:
        share.effective = 1.0 if share.parent is None else self._effective(share)
        for child in share.children:
            if not child.what.user:
                self._accounts(child)

    def _effective(self, share: Share) -> float:
        used = share.usage / self.root.usage if self.root.usage else 0.0
        parent = share.parent
        if parent is None or parent.parent is None:
            return used
        return used + ((parent.effective or 0.0) - used) * share.level_shares


def _raw(share: Share) -> int:
    return 1 if share.what.shares is None else share.what.shares


class _Ranks:
    """Fair Tree: the order of all users, branches first."""

    def __init__(self, users: int) -> None:
        self._users, self._left, self._rank = users, users, users

    def walk(self, siblings: Sequence[Share], *, tied: bool) -> None:
        """Number the users below these associations."""
        for share in siblings:
            share.level_fs = _level_fs(share)
        order = sorted(siblings, key=lambda share: (-share.level_fs, not share.what.user))
        k = 0
        while k < len(order):
            share = order[k]
            equal = k > 0 and order[k - 1].level_fs == share.level_fs
            if k == 0:
                equal = tied
            if share.what.user:
                if not equal:
                    self._rank = self._left
                share.fair = self._rank / self._users
                self._left -= 1
                k += 1
                continue
            merged = [each for each in order[k:] if each.level_fs == share.level_fs and not each.what.user]
            self.walk([child for each in merged for child in each.children], tied=equal)
            k += len(merged)


def _level_fs(share: Share) -> float:
    parent = share.parent.usage if share.parent is not None else 0.0
    share.effective = used = share.usage / parent if parent else 0.0
    if not share.level_shares:
        return 0.0
    return share.level_shares / used if used else inf
