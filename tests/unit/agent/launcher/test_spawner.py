"""Each spawn request gets its own answer."""

import errno
import os
import socket
from collections import deque
from functools import partial

import pytest

from gpu_scheduler.agent.spawn.fork_server import ForkServer
from gpu_scheduler.agent.spawn.spawner import Launch, Spawned, Spawner


class Forks(ForkServer):
    """Answers in the order of the requests, as the real one does; the first fork fails.

    Each child writes its pid at its gate.
    """

    def __init__(self, channel: socket.socket) -> None:
        super().__init__(0, channel)
        self._gates: deque[int] = deque()
        self._last = 1_000

    def request(self, gate: int, log: int, group: int) -> None:
        del log, group
        self._gates.append(os.dup(gate))

    def read_pid(self) -> int:
        gate = self._gates.popleft()
        self._last += 1
        if self._last > 1_001:
            os.write(gate, str(self._last).encode())
        os.close(gate)
        if self._last == 1_001:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return self._last


def test_failed_fork_does_not_mix_up_other_answers() -> None:
    """The callback of a failure may fork at once, as for an epilog."""
    heard: dict[str, Spawned | OSError] = {}

    def launch(name: str) -> Launch:
        return Launch(argv=(name,), environment={})

    def failed(child: Spawned | OSError) -> None:
        heard["first"] = child
        heard["epilog"] = spawner.fork_at_gate(launch("epilog"))

    with socket.socket() as channel:
        spawner = Spawner(Forks(channel))
        spawner.begin(launch("first"), failed)
        for name in ("second", "third"):
            spawner.begin(launch(name), partial(heard.__setitem__, name))
        spawner.collect()
    assert isinstance(heard.pop("first"), OSError)
    assert set(heard) == {"second", "third", "epilog"}
    for child in heard.values():
        assert isinstance(child, Spawned)
        assert child.read_refusal() == str(child.pid)
        child.gate.close()


@pytest.mark.parametrize("has_fork_server", [True, False], ids=["by the fork server", "by itself"])
def test_every_request_fails_without_descriptors(
    has_fork_server: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller without an answer would keep what it holds for the child, such as its log."""
    heard: list[Spawned | OSError] = []

    def no_more() -> tuple[socket.socket, socket.socket]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with socket.socket() as channel:
        spawner = Spawner(Forks(channel) if has_fork_server else None)
        monkeypatch.setattr(socket, "socketpair", no_more)
        spawner.begin(Launch(argv=("true",), environment={}), heard.append)
        spawner.begin_waiting((), -1, heard.append)
        spawner.collect()
    assert len(heard) == 2
    assert all(isinstance(child, OSError) for child in heard)
    assert "Too many open files" in str(heard[0])
