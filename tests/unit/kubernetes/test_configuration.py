"""Where the client finds the API server, and what it says when it finds none."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.kubernetes.client.configuration import (
    ExecPlugin,
    Pem,
    load_configuration,
    read_kubeconfig,
    read_service_account,
)
from gpu_scheduler.kubernetes.client.errors import InvalidConfiguration


def kubeconfig(
    path: Path,
    *,
    name: str = "lab",
    current: str | None = None,
    user: dict[str, Any] | None = None,
    **cluster: Any,
) -> Path:
    content = {
        "current-context": name if current is None else current,
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}:6443/", **cluster}}],
        "users": [{"name": "eva", "user": user or {"token": "secret"}}],
        "contexts": [
            {"name": name, "context": {"cluster": name, "user": "eva", "namespace": "team"}}
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def account(tmp_path: Path) -> Path:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text("t")
    (folder / "ca.crt").write_text("ca")
    (folder / "namespace").write_text("gpu-scheduler\n")
    return folder


IN_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


def test_the_order_is_that_of_kubectl(tmp_path: Path, account: Path) -> None:
    home = tmp_path / "home"
    kubeconfig(home / ".kube" / "config", name="home")
    named = kubeconfig(tmp_path / "named", name="named")
    listed = kubeconfig(tmp_path / "listed", name="listed")
    everything = IN_POD | {"KUBECONFIG": str(listed)}

    def server(environment: dict[str, str], **more: Any) -> str:
        return load_configuration(
            environment=environment, service_account=account, home=home, **more
        ).server

    assert server(everything, kubeconfig=named) == "https://named:6443"
    assert server(everything) == "https://listed:6443"
    assert server(IN_POD) == "https://10.96.0.1:6443"
    assert server({}) == "https://home:6443"
    with pytest.raises(InvalidConfiguration, match="no Kubernetes cluster is configured"):
        load_configuration(environment={}, service_account=account, home=tmp_path / "empty")


def test_a_service_account_has_files_that_are_renewed(account: Path) -> None:
    found = read_service_account(IN_POD, account)
    assert found.namespace == "gpu-scheduler"
    assert found.token_file == account / "token"
    assert found.authority == Pem(file=account / "ca.crt")
    six = read_service_account({"KUBERNETES_SERVICE_HOST": "fd00::1"}, account)
    assert six.server == "https://[fd00::1]:443"
    with pytest.raises(InvalidConfiguration, match="not a pod"):
        read_service_account({}, account)


def test_files_are_relative_to_the_kubeconfig_and_data_wins(tmp_path: Path) -> None:
    data = base64.b64encode(b"PEM").decode()
    path = kubeconfig(
        tmp_path / "config",
        user={
            "client-certificate": "pki/me.crt",
            "client-key": "/abs/me.key",
            "client-key-data": data,
            "tokenFile": "token",
            "as": "other",
            "as-groups": ["a"],
        },
        **{
            "certificate-authority": "ca.crt",
            "insecure-skip-tls-verify": True,
            "tls-server-name": "kubernetes",
            "proxy-url": "http://proxy:3128",
        },
    )
    found = read_kubeconfig([path])
    assert found.namespace == "team"
    assert found.authority == Pem(file=tmp_path / "ca.crt")
    assert found.certificate == Pem(file=tmp_path / "pki/me.crt")
    assert found.key == Pem(data=b"PEM")
    assert found.token_file == tmp_path / "token"
    assert not found.verifies_server
    assert (found.tls_server_name, found.proxy_url) == ("kubernetes", "http://proxy:3128")
    assert (found.impersonated_user, found.impersonated_groups) == ("other", ("a",))


def test_a_credential_plugin_is_read(tmp_path: Path) -> None:
    user = {
        "exec": {"command": "aws", "args": None, "apiVersion": "v1", "interactiveMode": "Never"}
    }
    found = read_kubeconfig([kubeconfig(tmp_path / "config", user=user)])
    assert found.exec_plugin == ExecPlugin(command="aws", api_version="v1")


def test_several_files_are_merged_and_the_first_wins(tmp_path: Path) -> None:
    first = kubeconfig(tmp_path / "first", name="one", current="")
    second = kubeconfig(tmp_path / "second", name="two", user={"token": "other"})
    found = read_kubeconfig([tmp_path / "missing", first, second])
    assert (found.server, found.token) == ("https://two:6443", "secret")
    assert read_kubeconfig([first, second], "one").server == "https://one:6443"


CONTEXT = "current-context: x, contexts: [{name: x, context: {%s}}]"
CLUSTER = "clusters: [{name: c}]"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not a kubeconfig"),
        ("a: [", "not valid YAML"),
        ("clusters: []", "no current-context"),
        ("current-context: x", "no context 'x'; known contexts: none"),
        (f"{{{CONTEXT % 'cluster: c'}}}", "names no known cluster"),
        (f"{{{CONTEXT % 'cluster: c, user: u'}, {CLUSTER}}}", "names no known user"),
        (f"{{{CONTEXT % 'cluster: c'}, {CLUSTER}}}", "has no server"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(InvalidConfiguration, match=complaint):
        read_kubeconfig([path])


@pytest.mark.parametrize(
    ("user", "complaint"),
    [
        ({"auth-provider": {"name": "gcp"}}, "has removed"),
        ({"username": "u", "password": "p"}, "has removed"),
        ({"exec": {"args": []}}, "exec plugin is not valid"),
        ({"client-key-data": "%%%"}, "not valid base64"),
    ],
)
def test_a_user_that_cannot_be_used_is_named(
    tmp_path: Path, user: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=complaint):
        read_kubeconfig([kubeconfig(tmp_path / "config", user=user)])
