"""Peer credentials: the kernel names the caller of a socket."""

import asyncio
import os
import pwd
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.api.auth import peer_credentials
from gpu_scheduler.api.auth.accounts import Accounts, Directory, account_of
from gpu_scheduler.api.auth.peer_credentials import Peer, PeerAuthenticator, peer_of
from gpu_scheduler.model.identity import Caller, Role
from gpu_scheduler.model.tenant import Tenant, TenantDirectory

NOBODY_UID = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")


def a_pair(host: str = "127.0.0.1") -> tuple[socket.socket, socket.socket]:
    """The two ends of a loopback connection: the caller's and the server's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        near = socket.create_connection(server.getsockname()[:2])
        far, _ = server.accept()
    return near, far


def a_kernel(
    server_uid: int = 0, tenants: list[Tenant] | None = None, **more: Any
) -> PeerAuthenticator:
    roster = TenantDirectory.of(tenants or [])
    return PeerAuthenticator(Directory(server_uid, (), lambda: roster, Accounts(**more)))


def found(known: PeerAuthenticator, peer: Peer) -> Caller | None:
    """The caller, after the account lookup."""
    return asyncio.run(known._directory.accounts.wait_for(lambda: known.caller(peer, {})))


def ends(far: socket.socket) -> tuple[peer_credentials._End, peer_credentials._End]:
    here, there = far.getsockname(), far.getpeername()
    return (peer_credentials._plain(there[0]), there[1]), (
        peer_credentials._plain(here[0]),
        here[1],
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_loopback_caller_is_owner_of_peer_socket(host: str) -> None:
    if host == "::1" and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    near, far = a_pair(host)
    with near, far:
        assert peer_of(far) == Peer(uid=os.getuid(), host=host)


def test_netlink_and_proc_lookup_agree() -> None:
    near, far = a_pair()
    with near, far:
        assert peer_credentials._read_table(*ends(far)) == os.getuid()
        try:
            assert peer_credentials._query_sock_diag(*ends(far)) == os.getuid()
        except OSError as error:
            pytest.skip(f"this kernel cannot be asked about one socket: {error}")


def test_closed_socket_has_no_owner() -> None:
    near, far = a_pair()
    with far:
        near.close()
        assert peer_of(far).uid is None
        assert peer_credentials._read_table(*ends(far)) is None


def test_unix_socket_caller_is_peer() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert peer_of(one) == Peer(uid=os.getuid(), gid=os.getgid(), unix=True, host="unix")


def test_ipv4_mapped_address_is_same_caller() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.socket(socket.AF_INET6) as near:
            try:
                near.connect(("::ffff:127.0.0.1", port))
            except OSError:
                pytest.skip("this machine has no IPv6")
            far, _ = server.accept()
            with far:
                assert peer_of(far).uid == os.getuid()


def test_address_of_another_machine_has_no_local_owner() -> None:
    assert peer_credentials.owner_of_socket(("192.0.2.1", 80), ("192.0.2.2", 4000)) is None
    assert peer_credentials.owner_of_socket(("127.0.0.1", 80), ("nonsense", 1)) is None


@needs_root
def test_another_user_is_distinguished() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        code = (
            f"import os, socket; 'x'.encode('idna');"
            f"os.setgid({NOBODY_UID}); os.setuid({NOBODY_UID});"
            f"s = socket.create_connection(('127.0.0.1', {server.getsockname()[1]})); s.recv(1)"
        )
        child = subprocess.Popen([sys.executable, "-I", "-c", code])
        far, _ = server.accept()
        with far:
            assert peer_of(far).uid == NOBODY_UID
        child.wait()


def test_root_and_server_user_are_admins() -> None:
    known = a_kernel(server_uid=1234)
    roles = {uid: found(known, Peer(uid=uid, gid=7)) for uid in (0, 1234, 4242)}
    assert {uid: caller.role for uid, caller in roles.items() if caller} == {
        0: Role.ADMIN,
        1234: Role.ADMIN,
        4242: Role.USER,
    }


def test_account_has_name_and_nameless_uid_has_number() -> None:
    known = a_kernel()
    root = found(known, Peer(uid=0, gid=99))
    assert root is not None
    assert (root.user, root.gid) == (pwd.getpwuid(0).pw_name, pwd.getpwuid(0).pw_gid)
    stranger = found(known, Peer(uid=3_999_999, gid=5))
    assert stranger is not None
    assert (stranger.user, stranger.uid, stranger.gid) == ("3999999", 3_999_999, 5)
    assert found(known, Peer(uid=None)) is None


def test_account_groups_map_to_tenants() -> None:
    root = account_of("root")
    assert root is not None
    vision = Tenant(id="vision", linux_groups=(root.groups[0],))
    caller = found(a_kernel(tenants=[vision]), Peer(uid=0))
    assert caller is not None
    assert (caller.tenant, caller.tenants) == ("vision", frozenset({"vision"}))
    assert account_of("nobody-has-this-name") is None
    assert account_of("a\0b") is None


def test_changed_tenant_applies_at_once() -> None:
    rosters = [TenantDirectory.of([])]
    kernel = PeerAuthenticator(Directory(0, (), lambda: rosters[-1]))
    stranger = Peer(uid=3_999_999)
    before = found(kernel, stranger)
    rosters.append(TenantDirectory.of([Tenant(id="vision", users=("3999999",))]))
    after = kernel.caller(stranger, {})
    assert before is not None
    assert after is not None
    assert (before.tenant, after.tenant) == ("default", "vision")
