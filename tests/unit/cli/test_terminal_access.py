"""How a terminal or notebook is reached, and what is rejected before waiting."""

from typing import Any, cast

import pytest

from gpu_scheduler.cli.interactive.editors import Endpoint
from gpu_scheduler.cli.interactive.shell import attach_command, require_reachable
from gpu_scheduler.client.address import Address
from gpu_scheduler.client.client import Client
from gpu_scheduler.model.errors import WrongState
from gpu_scheduler.model.node import TERMINAL_LABEL

NEAR = Address(path="/run/server.sock")
FAR = Address(host="head.lab", port=8080, tls=True)


class Reached:
    """What a client knows: nodes, and the address of the server."""

    def __init__(self, address: Address, *nodes: dict[str, Any]) -> None:
        self.connection = self
        self.address = address
        self._nodes = nodes

    def nodes(self) -> tuple[dict[str, Any], ...]:
        return self._nodes


def reached(address: Address, *nodes: dict[str, Any]) -> Client:
    return cast(Client, Reached(address, *nodes))


def a_node(name: str, *, old: bool = False, address: str = "") -> dict[str, Any]:
    labels = {} if old else {TERMINAL_LABEL: "yes"}
    return {"id": name, "labels": labels, "version": "0.0.9", "address": address}


def a_running(node: str, **fields: Any) -> dict[str, Any]:
    found = {"runner": "terminal", "state": "running", "user": "ann"}
    return found | {"allocation": [{"node": node}]} | fields


def test_shell_is_restricted_to_nodes_with_reachable_terminal() -> None:
    body: dict[str, Any] = {}
    require_reachable(reached(FAR, a_node("n1"), a_node("n2")), body)
    require_reachable(reached(FAR), body)
    assert body == {}, "nothing to avoid"
    require_reachable(reached(FAR, a_node("n1"), a_node("n2", old=True)), body)
    assert body == {"node_labels": {TERMINAL_LABEL: "yes"}}
    with pytest.raises(WrongState, match=r"too old, for example on n1 \(0\.0\.9\), n2"):
        require_reachable(reached(NEAR, a_node("n1", old=True), a_node("n2", old=True)), {})


def test_older_agent_is_sufficient_on_local_machine() -> None:
    body: dict[str, Any] = {}
    require_reachable(reached(NEAR, a_node("box", old=True)), body)
    assert body == {}
    with pytest.raises(WrongState):
        require_reachable(reached(FAR, a_node("box", old=True)), body)


def test_remote_terminal_is_attached_through_job() -> None:
    assert attach_command(a_running("n1"), "job-3") == ["tgpu", "attach", "job-3"]
    with pytest.raises(WrongState, match="runs in screen on n1"):
        attach_command(a_running("n1", runner="screen"), "job-3")


@pytest.mark.parametrize(
    ("address", "node", "ip", "host", "login", "tunnelled"),
    [
        (NEAR, a_node("n1", address="10.0.0.7"), "127.0.0.1", "127.0.0.1", "10.0.0.7", True),
        (NEAR, a_node("n1"), "127.0.0.1", "127.0.0.1", "n1", True),
        (NEAR, a_node("n1", address="10.0.0.7"), "0.0.0.0", "10.0.0.7", "10.0.0.7", False),
        (NEAR, a_node("n1", address="10.0.0.7"), "10.1.1.1", "10.1.1.1", "10.0.0.7", False),
        (NEAR, a_node("n1", address="127.0.0.1"), "127.0.0.1", "127.0.0.1", None, False),
        (FAR, a_node("n1", address="127.0.0.1"), "127.0.0.1", "127.0.0.1", "head.lab", True),
    ],
    ids=["by-ssh", "by-name", "open", "one-interface", "loopback", "on-the-server"],
)
def test_notebook_url_is_reachable_by_browser(
    address: Address, node: dict[str, Any], ip: str, host: str, login: str | None, tunnelled: bool
) -> None:
    place = Endpoint(reached(address, node), a_running("n1"), ip)
    assert (place.host, place.is_tunnelled) == (host, tunnelled)
    assert login is None or place.login == login
