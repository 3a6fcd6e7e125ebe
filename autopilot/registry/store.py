"""The registry: stored versions, the serving version, promotion and rollback."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autopilot.registry.artifact import pack, unpack
from autopilot.registry.atomic_files import (
    MissingError,
    RegistryError,
    locked,
    names_in,
    partial_files,
    read_whole,
    sha256,
    write_whole,
)
from autopilot.registry.manifest import (
    MAX_BYTES,
    SHORT,
    Manifest,
    library_problem,
    library_versions,
    read_manifest,
)
from autopilot.registry.pointer import Pointer, Promotion, read_pointer

KINDS = ("bursts", "runtimes", "hazards")
KEEP = 10
"""Kept versions of a kind besides the last serving ones (the reference keeps the same number)."""

QUOTA_MIB = 512.0
_NAME = re.compile(r"[0-9a-f]{64}")
_READ_AGAIN = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """One version as `list` shows it."""

    manifest: Manifest
    current: bool
    served_before: bool
    stored: bool  # False: only the manifest remains, for the lineage


@dataclass(frozen=True, slots=True)
class Served:
    """Content and manifest to serve, or neither. `refused` lists the skipped versions with their reasons."""

    manifest: Manifest | None = None
    content: dict[str, Any] | None = None
    refused: tuple[tuple[str, str], ...] = field(default=())


class Registry:
    """A folder of models. Raises `RegistryError`, an `InputError`, for errors of the disk or the user."""

    def __init__(
        self,
        folder: Path,
        *,
        quota_mib: float = QUOTA_MIB,
        now_s: Callable[[], float] = time.time,
        libraries: Mapping[str, str] | None = None,
    ) -> None:
        """Use `folder`; the first write creates it. `now_s` dates the records; `libraries` replaces the installed
        versions in tests.
        """
        self.folder = folder
        self.quota_bytes = int(quota_mib * 1024 * 1024)
        self._now_s = now_s
        self._libraries = dict(libraries or library_versions())

    # --- what is there ---------------------------------------------------------------------------

    def versions(self, kind: str) -> list[str]:
        """Names of all versions of a kind, including those with a damaged manifest. Raises `RegistryError` for an
        unreadable folder.
        """
        names = [name.removesuffix(".json") for name in names_in(self._models(_known(kind))) if name.endswith(".json")]
        return [name for name in names if _NAME.fullmatch(name)]

    def manifest(self, kind: str, version: str) -> Manifest:
        """The manifest of a version. Raises `RegistryError` if it is missing or was changed."""
        path = self._models(kind) / f"{version}.json"
        try:
            data = read_whole(path, MAX_BYTES)
        except MissingError:
            raise RegistryError(f"{kind}: there is no version {version[:SHORT]} in {self.folder}") from None
        manifest = read_manifest(data, version)
        if manifest.kind != kind:
            raise RegistryError(f"{kind}: version {version[:SHORT]} is of the kind {manifest.kind}")
        return manifest

    def entries(self, kind: str) -> tuple[list[Entry], list[tuple[str, str]]]:
        """Every version of a kind, newest first, and unreadable ones with the reason."""
        pointer = self.pointer(kind)
        found: list[Entry] = []
        damaged: list[tuple[str, str]] = []
        for version in self.versions(kind):
            try:
                manifest = self.manifest(kind, version)
            except RegistryError as error:
                damaged.append((version, str(error)))
                continue
            stored = os.path.exists(self.blob_path(manifest.artifact))  # noqa: PTH110 - `Path.exists` raises where it may not look
            found.append(Entry(manifest, version == pointer.current, version in pointer.serving, stored))
        found.sort(key=lambda each: (-each.manifest.created_s, each.manifest.version))
        return found, damaged

    def find(self, name: str) -> Manifest:
        """The version meant by a user: by kind (the serving one), or by a prefix of the version.

        Raises `RegistryError` if there is none, or several.
        """
        if name in KINDS:
            current = self.pointer(name).current
            if not current:
                raise RegistryError(f"{name}: no version serves; promote one (`autopilot models list`)")
            return self.manifest(name, current)
        if len(name) < 4:
            raise RegistryError(f"{name!r}: give a kind ({', '.join(KINDS)}) or at least 4 characters of a version")
        hits = [(kind, each) for kind in KINDS for each in self.versions(kind) if each.startswith(name)]
        if len(hits) != 1:
            how = (
                "no version starts with this"
                if not hits
                else (f"{len(hits)} versions start with this; give more characters")
            )
            raise RegistryError(f"{name!r}: {how}; `autopilot models list` shows those of {self.folder}")
        return self.manifest(*hits[0])

    def pointer(self, kind: str) -> Pointer:
        """Present and past serving versions. A damaged record is skipped for the previous one."""
        return read_pointer(self._pointers(_known(kind)))

    # --- serving ---------------------------------------------------------------------------------

    def serve(self, kind: str, accept: Callable[[Manifest, dict[str, Any]], str] | None = None) -> Served:
        """The current version, or the newest complete and trusted one before it of the installed libraries.

        `accept` may refuse one with a reason (another feature schema, for example). Without a version to serve the
        caller stays on its floor. Never raises for a damaged registry: errors are listed in `refused`.
        """
        refused: list[tuple[str, str]] = []
        for _ in range(_READ_AGAIN):
            pointer = self.pointer(kind)
            refused = [(kind, problem) for problem in pointer.problems]
            for version in reversed(pointer.serving):
                try:
                    manifest, content = self.load(kind, version)
                except RegistryError as error:
                    refused.append((version, str(error)))
                    continue
                reason = accept(manifest, content) if accept is not None else ""
                if not reason:
                    return Served(manifest, content, tuple(refused))
                refused.append((version, reason))
            if self.pointer(kind).serving == pointer.serving:  # otherwise it changed while we read
                break
        return Served(refused=tuple(refused))

    def load(self, kind: str, version: str) -> tuple[Manifest, dict[str, Any]]:
        """A version's manifest and content. The bytes are verified against their digest before they are opened.

        Raises `RegistryError` naming the version if anything is missing, changed or untrusted.
        """
        manifest = self.manifest(kind, version)
        problem = library_problem(manifest, self._libraries)
        if problem:
            raise RegistryError(f"{kind} {version[:SHORT]}: {problem}")
        data = read_whole(self.blob_path(manifest.artifact), manifest.artifact_bytes)
        if len(data) != manifest.artifact_bytes or sha256(data) != manifest.artifact:
            raise RegistryError(f"{kind} {version[:SHORT]}: its artifact was changed or truncated; fit it again")
        try:
            return manifest, unpack(data)
        except RegistryError as error:
            raise RegistryError(f"{kind} {version[:SHORT]}: {error}") from error

    # --- changing --------------------------------------------------------------------------------

    def check_writable(self) -> None:
        """Raise `RegistryError` for a registry without write access; call it before a long run."""
        with locked(self.folder):
            pass

    def put(self, content: Mapping[str, Any], manifest: Manifest) -> Manifest:
        """Store a version without serving it; storing the same one again changes nothing.

        `manifest` may omit artifact, artifact_bytes, parent, libraries and created_s: they are filled in. Raises
        `RegistryError` if it exceeds the quota or the disk.
        """
        _known(manifest.kind)
        _ = manifest.version  # refuses other than plain values, before anything is written
        data = pack(content)
        with locked(self.folder):
            made = replace(
                manifest,
                artifact=sha256(data),
                artifact_bytes=len(data),
                parent=manifest.parent or self.pointer(manifest.kind).current,
                libraries=manifest.libraries or self._libraries,
                created_s=manifest.created_s or self._now_s(),
            )
            path = self._models(made.kind) / f"{made.version}.json"
            with suppress(RegistryError):
                there = self.manifest(made.kind, made.version)
                self.load(made.kind, made.version)
                return there
            blob = self.blob_path(made.artifact)
            text = made.to_bytes()
            self._make_room(len(data) + len(text), made)
            write_whole(blob, data)
            write_whole(path, text)
        return made

    def promote(
        self, kind: str, version: str, *, by: str, why: str, forced: bool = False, expected: str | None = None
    ) -> Pointer:
        """Serve a version. `expected`: the version it was judged against; if another one serves, that is a conflict.

        Raises `RegistryError` for an unusable version, and for a conflict.
        """
        if not why.strip():
            raise RegistryError("promote: give a reason (--why)")
        with locked(self.folder):
            self.load(kind, version)
            pointer = self.pointer(kind)
            if expected is not None and pointer.current != expected:
                raise RegistryError(
                    f"{kind}: {pointer.current[:SHORT] or 'none'} serves now, and {version[:SHORT]} was judged "
                    f"against {expected[:SHORT] or 'none'}; judge it again"
                )
            if pointer.current == version:
                return pointer
            entry = Promotion(
                version, pointer.current, self._now_s(), by, why.strip(), "forced" if forced else "promoted"
            )
            return self._write_pointer(kind, pointer.promoted(entry))

    def rollback(self, kind: str, *, by: str, why: str, expected: str | None = None) -> Pointer:
        """Serve the newest usable version before the current one.

        `expected`: the version to replace. If another one serves, that is a conflict: two people at work on one
        incident intend one step. Raises `RegistryError` for a conflict, and if there is no previous version.
        """
        with locked(self.folder):
            pointer = self.pointer(kind)
            if expected is not None and pointer.current != expected:
                raise RegistryError(
                    f"{kind}: {pointer.current[:SHORT] or 'none'} serves now, no longer "
                    f"{expected[:SHORT] or 'none'}: another user changed it at the same time; check "
                    "`autopilot models list`, and roll back from there if necessary"
                )
            problems: list[str] = []
            for at in range(len(pointer.serving) - 2, -1, -1):
                version = pointer.serving[at]
                try:
                    self.load(kind, version)
                except RegistryError as error:
                    problems.append(str(error))
                    continue
                entry = Promotion(version, pointer.current, self._now_s(), by, why.strip(), "rolled back")
                return self._write_pointer(kind, pointer.rolled_back(at, entry))
        more = f" ({'; '.join(problems)})" if problems else ""
        raise RegistryError(
            f"{kind}: there is no version before {pointer.current[:SHORT] or 'any'} to roll back to{more}"
        )

    def gc(self, keep: int = KEEP, *, dry_run: bool = False) -> tuple[list[str], int]:
        """Drop versions neither serving nor among the newest: (artifacts dropped, bytes freed).

        The last `keep` serving ones and the `keep` newest of each kind stay. Manifests of dropped artifacts stay if a
        kept version descends from them.
        """
        if keep < 1:
            raise RegistryError(f"--keep: {keep} must be 1 or more")
        with locked(self.folder):
            return self._collect(keep, dry_run, spare=None)

    # --- inside, with the lock held --------------------------------------------------------------

    def _write_pointer(self, kind: str, pointer: Pointer) -> Pointer:
        place = self._pointers(kind)
        before = self.pointer(kind)
        if before.serving:
            write_whole(place.with_suffix(".before.json"), before.to_bytes())
        write_whole(place, pointer.to_bytes())
        return pointer

    def _make_room(self, needed: int, made: Manifest) -> None:
        """Collect with decreasing `keep` until `needed` bytes fit the quota. Raises `RegistryError` if that fails."""
        if self.used_bytes() + needed <= self.quota_bytes:
            return
        for keep in (KEEP, 3, 1):
            self._collect(keep, dry_run=False, spare=made.artifact)
            if self.used_bytes() + needed <= self.quota_bytes:
                return
        raise RegistryError(
            f"{self.folder}: a version of {needed:,} bytes does not fit: {self.used_bytes():,} of "
            f"{self.quota_bytes:,} bytes are in use by versions that serve or served last; raise the quota"
        )

    def _collect(self, keep: int, dry_run: bool, spare: str | None) -> tuple[list[str], int]:
        kept_artifacts = {spare} if spare else set()
        kept_manifests: set[str] = set()
        everything: dict[str, Manifest] = {}
        unknown = False  # an artifact without a readable manifest
        for kind in KINDS:
            entries, damaged = self.entries(kind)
            everything |= {each.manifest.version: each.manifest for each in entries}
            stays = self._staying(kind, [each.manifest.version for each in entries], keep)
            kept_artifacts |= {everything[name].artifact for name in stays if name in everything}
            kept_manifests |= _with_ancestors(stays, everything)
            unknown |= bool(damaged)
        blobs = {path.stem: path for path in (self.folder / "blobs").glob("*/*.skops")}
        owned = {each.artifact for each in everything.values()}
        dropped = sorted(name for name in set(blobs) - kept_artifacts if name in owned or not unknown)
        lost = [
            self._models(each.kind) / f"{name}.json" for name, each in everything.items() if name not in kept_manifests
        ]
        doomed = [*(blobs[name] for name in dropped), *lost, *partial_files(self.folder)]
        freed = sum(_size(path) for path in doomed)
        if not dry_run:
            for path in doomed:
                with suppress(OSError):
                    path.unlink()
        return dropped, freed

    def _staying(self, kind: str, newest: Sequence[str], keep: int) -> set[str]:
        """The kept versions of a kind. With a damaged record of the serving ones all of them stay, to be safe."""
        pointer = self.pointer(kind)
        if pointer.problems:
            return {*pointer.serving, *newest}
        serves = self.serve(kind).manifest  # an older one if the last ones cannot serve
        return {*pointer.serving[-keep:], *newest[:keep], *([] if serves is None else [serves.version])}

    def used_bytes(self) -> int:
        """Disk space of models and manifests."""
        places = (self.folder / "blobs", self.folder / "models")
        return sum(_size(path) for place in places for path in place.rglob("*") if path.is_file())

    # --- places ----------------------------------------------------------------------------------

    def blob_path(self, artifact: str) -> Path:
        """Path of an artifact."""
        return self.folder / "blobs" / artifact[:2] / f"{artifact}.skops"

    def _models(self, kind: str) -> Path:
        return self.folder / "models" / kind

    def _pointers(self, kind: str) -> Path:
        return self.folder / "current" / f"{kind}.json"


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise RegistryError(f"{kind!r}: is not one of {', '.join(KINDS)}")
    return kind


def _with_ancestors(names: set[str], everything: Mapping[str, Manifest]) -> set[str]:
    found: set[str] = set()
    waiting: Sequence[str] = sorted(names)
    while waiting:
        found.update(waiting)
        parents = {everything[name].parent for name in waiting if name in everything}
        waiting = sorted(parents - found - {""})
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
