"""The Ed25519 keys that seal the audit log.

The private key is a PEM file that only its owner may read. The public key lies beside it, with the suffix `.pub`.
"""

from __future__ import annotations

import os
import stat
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from autopilot.core.model.errors import InputError
from autopilot.files import unwritten, write_bytes


def signing_key(path: Path) -> Ed25519PrivateKey:
    """The private key at `path`; a missing file is created with a new key.

    Raises `InputError` where the file is no such key, or where others may read it.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return _read_private(path)
    except OSError as error:
        raise InputError(f"{path}: the audit key cannot be created: {error.strerror}; choose another path") from error
    key = Ed25519PrivateKey.generate()
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink()  # half a key would be no key for the next start
        raise unwritten(path, error) from error
    write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        path.with_name(path.name + ".pub"),
    )
    return key


def _read_private(path: Path) -> Ed25519PrivateKey:
    try:
        mode = path.stat().st_mode
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: the audit key cannot be read: {error.strerror}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise InputError(f"{path}: other users may read the audit key; run chmod 600 {path}")
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path}: not a private key in PEM format without a password") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"{path}: not an Ed25519 key")
    return key


def public_key(path: Path) -> Ed25519PublicKey:
    """The public key at `path`. Raises `InputError` where there is none."""
    try:
        key = load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: the public key cannot be read: {error.strerror}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path}: not a public key in PEM format") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"{path}: not an Ed25519 key")
    return key


def key_id(key: Ed25519PublicKey) -> str:
    """A short name of a key: the first 16 hexadecimal digits of the SHA-256 of its raw bytes."""
    return sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:16]
