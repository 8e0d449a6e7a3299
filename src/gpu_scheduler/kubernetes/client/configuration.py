"""Where the API server is, and who we are: from a kubeconfig or from a pod's service account.

`load_configuration` follows kubectl: an explicit file, then $KUBECONFIG (several files are merged,
the first one wins), then the service account of the pod, then ~/.kube/config. Files with tokens and
certificates are named here and read by `credentials`, again and again, because they are renewed.
"""

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gpu_scheduler.kubernetes.client.errors import InvalidConfiguration

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ExecVariable(msgspec.Struct, frozen=True, kw_only=True):
    """An environment variable of a credential plugin."""

    name: str
    value: str


class ExecPlugin(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A program that prints credentials, as the clouds use them."""

    command: str
    api_version: str = "client.authentication.k8s.io/v1"
    args: tuple[str, ...] | None = None
    env: tuple[ExecVariable, ...] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pem:
    """A certificate or key: its text, or the file that holds it."""

    data: bytes = b""
    file: Path | None = None

    def __bool__(self) -> bool:
        return bool(self.data) or self.file is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """How to reach one API server as one identity."""

    server: str
    namespace: str = "default"
    authority: Pem = Pem()
    verifies_server: bool = True
    tls_server_name: str = ""
    proxy_url: str = ""
    certificate: Pem = Pem()
    key: Pem = Pem()
    token: str = ""
    token_file: Path | None = None
    exec_plugin: ExecPlugin | None = None
    impersonated_user: str = ""
    impersonated_groups: tuple[str, ...] = ()


def load_configuration(
    *,
    kubeconfig: str | Path = "",
    context: str = "",
    environment: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
    home: Path | None = None,
) -> Configuration:
    """Find the configuration; raises `InvalidConfiguration` if there is none that can be used."""
    if kubeconfig:
        return read_kubeconfig([Path(kubeconfig)], context)
    listed = [Path(part) for part in environment.get("KUBECONFIG", "").split(":") if part]
    if listed:
        return read_kubeconfig(listed, context)
    if environment.get("KUBERNETES_SERVICE_HOST") and (service_account / "token").exists():
        return read_service_account(environment, service_account)
    default = (home or Path.home()) / ".kube" / "config"
    if default.exists():
        return read_kubeconfig([default], context)
    raise InvalidConfiguration(
        f"no Kubernetes cluster is configured: $KUBECONFIG is not set, {default} does not exist,"
        " and this is not a pod; set KUBECONFIG or name a kubeconfig file"
    )


def read_service_account(
    environment: Mapping[str, str] = os.environ, directory: Path = SERVICE_ACCOUNT
) -> Configuration:
    """The configuration that Kubernetes gives to each pod."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise InvalidConfiguration("KUBERNETES_SERVICE_HOST is not set: this is not a pod")
    if ":" in host:
        host = f"[{host}]"
    namespace = directory / "namespace"
    return Configuration(
        server=f"https://{host}:{port}",
        namespace=namespace.read_text(encoding="utf-8").strip()
        if namespace.exists()
        else "default",
        authority=Pem(file=directory / "ca.crt"),
        token_file=directory / "token",
    )


def read_kubeconfig(paths: list[Path], context: str = "") -> Configuration:
    """The configuration of a context in one kubeconfig, or in several that are merged."""
    clusters: dict[str, tuple[Any, Path]] = {}
    users: dict[str, tuple[Any, Path]] = {}
    contexts: dict[str, Any] = {}
    names = ", ".join(map(str, paths))
    for path in paths:
        content = _read_yaml(path)
        if content is None:
            continue
        context = context or content.get("current-context") or ""
        for entry in content.get("clusters") or ():
            clusters.setdefault(entry["name"], (entry.get("cluster") or {}, path.parent))
        for entry in content.get("users") or ():
            users.setdefault(entry["name"], (entry.get("user") or {}, path.parent))
        for entry in content.get("contexts") or ():
            contexts.setdefault(entry["name"], entry.get("context") or {})
    if not context:
        raise InvalidConfiguration(f"{names}: no current-context is set; choose a context")
    if context not in contexts:
        known = ", ".join(sorted(contexts)) or "none"
        raise InvalidConfiguration(f"{names}: no context {context!r}; known contexts: {known}")
    chosen = contexts[context]
    cluster_name, user_name = chosen.get("cluster", ""), chosen.get("user", "")
    if cluster_name not in clusters:
        raise InvalidConfiguration(f"{names}: context {context!r} names no known cluster")
    if user_name and user_name not in users:
        raise InvalidConfiguration(f"{names}: context {context!r} names no known user")
    cluster, cluster_folder = clusters[cluster_name]
    user, user_folder = users.get(user_name, ({}, Path()))
    if not cluster.get("server"):
        raise InvalidConfiguration(f"{names}: cluster {cluster_name!r} has no server")
    if user.get("auth-provider") or user.get("username"):
        raise InvalidConfiguration(
            f"{names}: user {user_name!r} uses a method that Kubernetes has removed"
            " (auth-provider or password); use a token, a client certificate or an exec plugin"
        )
    plugin = user.get("exec")
    return Configuration(
        server=str(cluster["server"]).rstrip("/"),
        namespace=chosen.get("namespace") or "default",
        authority=_pem(cluster, "certificate-authority", cluster_folder),
        verifies_server=not cluster.get("insecure-skip-tls-verify", False),
        tls_server_name=cluster.get("tls-server-name") or "",
        proxy_url=cluster.get("proxy-url") or "",
        certificate=_pem(user, "client-certificate", user_folder),
        key=_pem(user, "client-key", user_folder),
        token=user.get("token") or "",
        token_file=user_folder / user["tokenFile"] if user.get("tokenFile") else None,
        exec_plugin=_exec_plugin(plugin, f"{names}: user {user_name!r}") if plugin else None,
        impersonated_user=user.get("as") or "",
        impersonated_groups=tuple(user.get("as-groups") or ()),
    )


def _read_yaml(path: Path) -> dict[str, Any] | None:
    """The content of a file; None if there is none, which kubectl accepts in a list of files."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidConfiguration(f"{path}: {error.strerror}") from error
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidConfiguration(f"{path}: not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise InvalidConfiguration(f"{path}: this is not a kubeconfig")
    return content


def _pem(part: Mapping[str, Any], name: str, folder: Path) -> Pem:
    """The inline data wins over the file, as in kubectl; file names are relative to the config."""
    data = part.get(f"{name}-data")
    if data:
        try:
            return Pem(data=base64.b64decode(data, validate=True))
        except (binascii.Error, ValueError) as error:
            raise InvalidConfiguration(f"{name}-data is not valid base64: {error}") from error
    return Pem(file=folder / part[name]) if part.get(name) else Pem()


def _exec_plugin(given: Any, where: str) -> ExecPlugin:
    try:
        return msgspec.convert(given, ExecPlugin)
    except msgspec.ValidationError as error:
        raise InvalidConfiguration(f"{where}: the exec plugin is not valid: {error}") from error
