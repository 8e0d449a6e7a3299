"""What an agent says about its node, and whether another agent speaks for that node already."""

from __future__ import annotations

from gpu_scheduler.control.lost import LEASE_LABEL
from gpu_scheduler.control.messages import NodeFound
from gpu_scheduler.model.node import Adapter
from gpu_scheduler.model.own_labels import TERMINAL_LABEL, runner_label
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.orders import devices_of
from gpu_scheduler.wire.versions import TERMINALS

ALIVE_S = 12.0
"""Who was heard within this time is there; agents say something every 5 s."""


def introduction(hello: pb.Hello) -> pb.Hello:
    """What is to be remembered of who an agent is, for as long as its stream lasts."""
    return pb.Hello(
        node=hello.node,
        version=hello.version,
        instance=hello.instance,
        boot_id=hello.boot_id,
        runners=hello.runners,
        address=hello.address,
        boot_ms=hello.boot_ms,
        abilities=hello.abilities,
    )


def node_found(hello: pb.Hello, inventory: pb.Inventory) -> NodeFound:
    """The fact for the core: what the node has, by its first word or by a later one."""
    labels = {**inventory.labels, **{runner_label(runner): "yes" for runner in hello.runners}}
    if hello.boot_ms:
        labels[LEASE_LABEL] = "yes"
    if TERMINALS in hello.abilities:
        labels[TERMINAL_LABEL] = "yes"
    return NodeFound(
        node_id=hello.node,
        cpu_milli=inventory.cpu_milli,
        memory_mb=inventory.memory_mb,
        devices=devices_of(inventory),
        labels=tuple(sorted(labels.items())),
        rack=inventory.rack,
        address=hello.address,
        version=hello.version,
        numa_nodes=inventory.numa_nodes,
        direct_storage=inventory.direct_storage,
        adapters=tuple(
            Adapter(
                name=adapter.name,
                port=adapter.port,
                link=adapter.link,
                rate_gbps=adapter.rate_gbps,
                numa_node=adapter.numa_node,
                active=adapter.active,
            )
            for adapter in inventory.adapters
        ),
        unfit=inventory.unfit,
    )


def refusal(hello: pb.Hello, other: pb.Hello, silent_s: float) -> str:
    """Why an agent is not taken in beside another one of the same name; empty if it is.

    One and the same agent may come again at any time. Another one takes over when the first is
    silent: it was killed, or its machine was, and nobody has noticed yet.
    """
    if hello.instance == other.instance or silent_s > ALIVE_S:
        return ""
    is_here = hello.boot_id == other.boot_id
    where = "on the same machine" if is_here else f"at {other.address or 'another machine'}"
    return (
        f"node '{hello.node}' is connected already, by an agent {where}; give this one another "
        "name with --name (agent.node_name), or stop that one"
    )
