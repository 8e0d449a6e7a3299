"""The start of a distributed training in plain Python: rendezvous, exchange, reduce.

Rank 0 listens at MASTER_ADDR:MASTER_PORT, as the store of torch.distributed does; all ranks
connect, send their values, and get the sum. Prints one line, and exits with 0 on success. With
STAY=1 it then waits to be stopped.
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

PATIENCE_S = 60
RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
PLACE = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))


def read(connection: socket.socket) -> dict:
    """One line of JSON."""
    with connection.makefile("r", encoding="utf-8") as lines:
        return json.loads(lines.readline())


def say(connection: socket.socket, value: object) -> None:
    connection.sendall(json.dumps(value).encode() + b"\n")


def host(mine: dict) -> list[dict]:
    """Wait for all others, and send the sum to everyone."""
    said, others = [mine], []
    with socket.create_server(("", PLACE[1]), backlog=WORLD_SIZE) as server:
        server.settimeout(PATIENCE_S)
        while len(said) < WORLD_SIZE:
            connection, _ = server.accept()
            connection.settimeout(PATIENCE_S)
            said.append(read(connection))
            others.append(connection)
        said.sort(key=lambda one: one["rank"])
        for connection in others:
            say(connection, said)
            connection.close()
    return said


def join(mine: dict) -> list[dict]:
    """Connect to rank 0, which may start a little later."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            connection = socket.create_connection(PLACE, timeout=PATIENCE_S)
            break
        except OSError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.02)
    with connection:
        say(connection, mine)
        return read(connection)


def main() -> int:
    hosts = Path(os.environ["TGPU_HOSTFILE"]).read_text(encoding="utf-8").splitlines()
    mine = {"rank": RANK, "number": 10**RANK, "hosts": hosts}
    said = host(mine) if RANK == 0 else join(mine)
    total = sum(one["number"] for one in said)
    ranks = [one["rank"] for one in said]
    names = (*("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "NNODES"), "PET_NPROC_PER_NODE")
    told = [f"sum {total}", *(f"{name}={os.environ[name]}" for name in names), *hosts]
    sys.stdout.write(" ".join(told) + "\n")
    sys.stdout.flush()
    if os.environ.get("STAY"):
        signal.pause()
    same = all(one["hosts"] == hosts for one in said)
    return 0 if ranks == list(range(WORLD_SIZE)) and same else 1


if __name__ == "__main__":
    sys.exit(main())
