"""Address and credentials of a cluster, from a kubeconfig or from the service account of the pod.

The official client reads them: contexts, client certificates, token files and exec plugins. Everything else of it is
left out: its models cost seconds of CPU in a large cluster.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from autopilot.core.model.errors import InputError
from autopilot.deadline import watched

POOLED = 64
"""Connections kept open: one watch for each kind, and those for lists."""


class Connections(Protocol):
    """The present address and credentials, as a client asks for them (`Access` has them)."""

    @property
    def host(self) -> str:
        """Address of the API server."""
        ...

    def connection(self) -> tuple[Any, dict[str, str], int]:
        """A pool manager, the headers that authenticate, and the generation of both. Raises `OSError`."""
        ...

    def renew(self, generation: int) -> None:
        """Read the credentials again. Raises `OSError`."""
        ...


@dataclass(frozen=True, slots=True)
class Address:
    """Address of the API server: a kubeconfig (with a context, or its current one) or the pod's own account."""

    kubeconfig: Path | None = None
    context: str | None = None
    in_cluster: bool = False


class Access:
    """Connections with the present credentials. Safe for use from several threads."""

    def __init__(self, address: Address) -> None:
        """Read the configuration. Raises `InputError` for an unusable one, with the file and the fix."""
        self._address, self._lock = address, threading.Lock()
        self._client: Any = None
        self._configuration: Any = None
        self.generation = 0
        self._read()

    @property
    def host(self) -> str:
        """Address of the API server."""
        return str(self._configuration.host).rstrip("/")

    def connection(self) -> tuple[Any, dict[str, str], int]:
        """A urllib3 pool manager, the headers that authenticate, and the generation of both.

        An exec plugin with an expired token runs again here, and a rotated token file of the pod is read again.
        """
        with self._lock:
            headers: dict[str, str] = {"User-Agent": "gpu-autopilot"}
            try:
                settings = self._configuration.auth_settings()
            except Exception as error:
                raise OSError(f"the credentials cannot be renewed: {error}") from error
            for found in settings.values():
                if found["in"] == "header" and found["value"]:
                    headers[found["key"]] = found["value"]
            return self._client.rest_client.pool_manager, headers, self.generation

    def renew(self, generation: int) -> None:
        """Read the configuration again, unless another thread has done so since `generation`."""
        with self._lock:
            if generation != self.generation:
                return
        try:
            self._read()
        except InputError as error:
            raise OSError(str(error)) from error

    def _read(self) -> None:
        from kubernetes.client import ApiClient

        configuration = _configuration(self._address)
        configuration.connection_pool_maxsize = POOLED
        configuration.retries = False
        client = ApiClient(configuration)
        watched(client.rest_client.pool_manager)
        with self._lock:
            self._configuration, self._client = configuration, client
            self.generation += 1


def default_files() -> str:
    """The default kubeconfig, or several in the form of a path list."""
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def _configuration(address: Address) -> Any:
    """The official client's configuration. Raises `InputError`."""
    from kubernetes import config
    from kubernetes.client import Configuration

    configuration = Configuration()
    if address.in_cluster:
        try:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except (config.ConfigException, OSError) as error:
            raise InputError(
                f"--in-cluster: {error} This process runs in no pod with a service account; give --kubeconfig FILE"
            ) from error
        return configuration
    source = address.kubeconfig
    if source is not None and not source.is_file():
        raise InputError(f"--kubeconfig {source}: there is no such file; give the path of a kubeconfig")
    try:
        config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=str(source) if source is not None else None,
            context=address.context,
            client_configuration=configuration,
            persist_config=False,
        )
    except (config.ConfigException, OSError, ValueError, TypeError, KeyError) as error:
        if source is None and not any(Path(each).expanduser().is_file() for each in default_files().split(os.pathsep)):
            named = (
                "KUBECONFIG: there is no file" if os.environ.get("KUBECONFIG") else "--kubeconfig: none, and no file"
            )
            raise InputError(
                f"{named} {default_files()}; give --kubeconfig FILE, or set KUBECONFIG to a file that exists"
            ) from error
        where = f"--kubeconfig {source}" if source is not None else f"the default kubeconfig, {default_files()}"
        why = str(error).rstrip(".") if isinstance(error, config.ConfigException | OSError) else "it is no kubeconfig"
        raise InputError(
            f"{where}: it cannot be used: {why}; check it with `kubectl --kubeconfig FILE config view`"
        ) from error
    except Exception as error:  # a file without YAML raises an error of the YAML library
        raise InputError(f"--kubeconfig {source}: it is not a kubeconfig: {error}") from error
    return configuration
