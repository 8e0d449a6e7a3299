"""Account lookups with a directory service that is slow, hangs or loses accounts."""

import asyncio
import os
import pwd
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpu_scheduler.api.auth import accounts as accounts_module
from gpu_scheduler.api.auth.accounts import (
    FRESH_S,
    MOST_THREADS,
    USABLE_S,
    Account,
    Accounts,
    Directory,
    Key,
    LookupPending,
    account_of,
    group_numbers,
)
from gpu_scheduler.api.auth.tokens import PREFIX
from gpu_scheduler.api.grpc.scheduler_service import (
    SERVICE,
    SchedulerService,
    add_scheduler_service,
)
from gpu_scheduler.control.messages import MakeToken
from gpu_scheduler.model.errors import ClusterError
from gpu_scheduler.model.identity import Token
from gpu_scheduler.model.tenant import Tenant, TenantDirectory
from gpu_scheduler.wire import scheduler_pb2 as pb
from gpu_scheduler.wire.handshake import secret_hash
from tests.unit.api.lab import ApiLab

ANN, BOB = 4201, 4202
LONGEST_S = 20
NOBODY = pwd.getpwnam("nobody")
SECRET = PREFIX + "s" * 43


class Service:
    """A directory service that does not answer for some users, and counts queries."""

    def __init__(self) -> None:
        self.hangs_for: set[Key] = set()
        self.asked: list[Key] = []
        self.hanging = threading.Semaphore(0)
        self.groups: tuple[str, ...] = ("lab",)
        self.problem = ""
        self.now_s = 0.0
        self._answers = threading.Event()

    def look_up(self, key: Key) -> Account | None:
        self.asked.append(key)
        if self.problem:
            raise OSError(self.problem)
        if key in self.hangs_for:
            self.hanging.release()
            self._answers.wait(60)
        if key == "nobody-has-this-name":
            return None
        uid = key if isinstance(key, int) else int(key.removeprefix("user-"))
        return Account(f"user-{uid}", uid, uid, self.groups)

    def answer(self) -> None:
        self.hangs_for.clear()
        self._answers.set()

    def accounts(self, timeout_s: float = LONGEST_S) -> Accounts:
        return Accounts(self.look_up, timeout_s=timeout_s, clock=lambda: self.now_s)


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()
    yield found
    found.answer()


def play(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 2 * LONGEST_S))


async def of(accounts: Accounts, uid: int) -> Account:
    return await accounts.wait_for(lambda: accounts.of(uid))


async def until_hanging(service: Service, count: int = 1) -> None:
    for _ in range(count):
        assert await asyncio.to_thread(service.hanging.acquire, timeout=LONGEST_S)


# --- queries


def test_concurrent_lookups_of_same_user_are_merged(service: Service) -> None:
    async def scenario() -> None:
        accounts = service.accounts()
        service.hangs_for = {ANN}
        several = [asyncio.ensure_future(of(accounts, ANN)) for _ in range(5)]
        await until_hanging(service)
        service.answer()
        assert {account.name for account in await asyncio.gather(*several)} == {"user-4201"}
        assert accounts.of(ANN).name == "user-4201"
        assert service.asked == [ANN]

    play(scenario)


def test_hanging_lookup_blocks_no_other_user(service: Service) -> None:
    async def scenario() -> None:
        accounts = service.accounts()
        service.hangs_for = {ANN}
        slow = asyncio.ensure_future(of(accounts, ANN))
        await until_hanging(service)
        assert (await of(accounts, BOB)).name == "user-4202"
        assert not slow.done()
        service.answer()
        assert (await slow).name == "user-4201"

    play(scenario)


def test_hanging_lookup_fails_caller_and_is_not_repeated_meanwhile(
    service: Service,
) -> None:
    async def scenario() -> None:
        accounts = service.accounts(timeout_s=0.05)
        service.hangs_for = {ANN}
        for _ in range(3):
            with pytest.raises(ClusterError, match=r"uid 4201 could not .* within 0\.05 s on this"):
                await of(accounts, ANN)
        assert service.asked == [ANN]
        answer = accounts._lookups[ANN].result
        service.answer()
        await answer
        assert accounts.of(ANN).name == "user-4201"
        assert service.asked == [ANN]

    play(scenario)


def test_failed_lookup_is_reported_and_next_one_retries(service: Service) -> None:
    async def scenario() -> None:
        accounts = service.accounts()
        service.problem = "connection refused"
        with pytest.raises(ClusterError, match=r"user 'user-7' .* connection refused"):
            await accounts.wait_for(lambda: accounts.named("user-7"))
        service.problem = ""
        assert (await of(accounts, 7)).name == "user-7"

    play(scenario)


def test_lookups_are_limited_and_queued(service: Service) -> None:
    async def scenario() -> None:
        accounts = service.accounts()
        many = range(1, 3 * MOST_THREADS + 1)
        service.hangs_for = set(many)
        asked = [asyncio.ensure_future(of(accounts, uid)) for uid in many]
        await until_hanging(service, MOST_THREADS)
        assert len(service.asked) == MOST_THREADS
        service.answer()
        assert [account.uid for account in await asyncio.gather(*asked)] == list(many)

    play(scenario)


def test_lookups_that_cannot_be_answered_in_time_are_rejected_at_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts_module, "MOST_WAITING", 2)

    async def scenario() -> None:
        accounts = service.accounts()
        await of(accounts, BOB)
        busy = range(1, MOST_THREADS + 1)
        service.hangs_for = set(busy)
        for uid in (*busy, 100, 101):
            with pytest.raises(LookupPending):
                accounts.of(uid)
        with pytest.raises(ClusterError, match="2 accounts are waiting"):
            accounts.of(102)
        service.now_s = FRESH_S + 1
        assert accounts.of(BOB).name == "user-4202"

    play(scenario)


# --- cache


def test_stale_entry_is_used_while_refreshed(service: Service) -> None:
    async def scenario() -> None:
        accounts = service.accounts()
        await of(accounts, ANN)
        service.groups = ("other",)
        service.now_s = FRESH_S + 1
        assert accounts.of(ANN).groups == ("lab",)
        await accounts._lookups[ANN].result
        assert accounts.of(ANN).groups == ("other",)
        assert service.asked == [ANN, ANN]

    play(scenario)


def test_removed_group_member_loses_tenant_within_a_minute_even_without_answer(
    service: Service,
) -> None:
    roster = TenantDirectory.of([Tenant(id="vision", linux_groups=("lab",))])

    async def scenario() -> None:
        people = Directory(0, (), lambda: roster, service.accounts(timeout_s=1.0))

        async def tenant() -> str:
            return (await people.accounts.wait_for(lambda: people.caller(ANN))).tenant

        assert await tenant() == "vision"
        service.groups = ()
        service.hangs_for = {ANN}
        service.now_s = USABLE_S - 1
        assert await tenant() == "vision"
        service.now_s = USABLE_S
        with pytest.raises(ClusterError):
            await tenant()
        answer = people.accounts._lookups[ANN].result
        service.answer()
        await answer
        assert await tenant() == "default"

    play(scenario)
    assert USABLE_S <= 60


def test_stale_negative_entry_is_not_used(service: Service) -> None:
    async def scenario() -> None:
        accounts = service.accounts()

        def ask() -> Account | None:
            return accounts.named("nobody-has-this-name")

        assert await accounts.wait_for(ask) is None
        assert ask() is None
        service.now_s = FRESH_S
        with pytest.raises(LookupPending):
            ask()

    play(scenario)


def test_lookup_by_name_also_caches_uid(service: Service) -> None:
    async def scenario() -> None:
        accounts = service.accounts()
        named = await accounts.wait_for(lambda: accounts.named("user-4201"))
        assert accounts.of(ANN) is named
        assert service.asked == ["user-4201"]

    play(scenario)


# --- system accounts


def test_groups_of_all_accounts_match_system() -> None:
    for entry in pwd.getpwall():
        expected = os.getgrouplist(entry.pw_name, entry.pw_gid)
        assert group_numbers(entry.pw_name, entry.pw_gid) == expected


def test_account_is_found_by_uid_and_name_or_reported_missing() -> None:
    root = account_of(0)
    assert root is not None
    assert (root.name, root.uid, root.gid) == ("root", 0, pwd.getpwuid(0).pw_gid)
    assert account_of("root") == root
    for nobody in (3_999_999, "nobody-has-this-name", "a\0b", ""):
        assert account_of(nobody) is None


HANGING = """
#include <grp.h>
#include <unistd.h>

/* Says that it has begun, and waits until it may go on. */
static void hang(void) { char c = 'x'; write(101, &c, 1); read(102, &c, 1); }

int getgrouplist(const char *user, gid_t group, gid_t *groups, int *count) {
    (void)user; hang(); groups[0] = group; *count = 1; return 1;
}
int getgrgid_r(gid_t gid, struct group *g, char *b, size_t n, struct group **found) {
    (void)gid; (void)g; (void)b; (void)n; hang(); *found = 0; return 0;
}
"""
ASKING = """
import asyncio, os
from gpu_scheduler.api.auth.accounts import Accounts

async def ask():
    accounts = Accounts()
    asked = asyncio.ensure_future(accounts.wait_for(lambda: accounts.of(0)))
    for _ in range(2):
        await asyncio.to_thread(os.read, begun, 1)
        os.write(go_on, b"x")
    print((await asked).groups)

begun, told = os.pipe()
waits, go_on = os.pipe()
os.dup2(told, 101)
os.dup2(waits, 102)
asyncio.run(ask())
"""


def test_group_lookup_does_not_block_event_loop(tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed, so no service that hangs can be built")
    source, library = tmp_path / "hanging.c", tmp_path / "hanging.so"
    source.write_text(HANGING)
    subprocess.run([compiler, "-w", "-shared", "-fPIC", source, "-o", library], check=True)
    asked = subprocess.run(
        [sys.executable, "-c", ASKING],
        env=os.environ | {"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert (asked.stdout.strip(), asked.returncode) == ("('0',)", 0), asked.stderr


# --- server


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """The lookup of `nobody` hangs, all others work."""
    service = Service()
    service.hangs_for = {"nobody"}
    real = pwd.getpwnam

    def slow(name: str) -> pwd.struct_passwd:
        if name in service.hangs_for:
            service.hanging.release()
            service._answers.wait(60)
        return real(name)

    monkeypatch.setattr(pwd, "getpwnam", slow)
    yield service
    service.answer()


@pytest.fixture
def lab(hanging: Service) -> Iterator[ApiLab]:
    """A server with a token of `nobody`."""
    token = Token(
        id="tok-1",
        secret_hash=secret_hash(SECRET),
        user="nobody",
        uid=NOBODY.pw_uid,
        tenant="default",
        created_by="root",
        created_ms=0,
        expires_ms=1 << 52,
    )
    with ApiLab(server_uid=0) as lab:
        lab.run(lab.loop.apply(MakeToken(token)))
        yield lab
        hanging.answer()


def in_a_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Start something, and return a handle to wait for it."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()

    def wait() -> Any:
        thread.join(LONGEST_S)
        return results[0]

    return wait


def test_server_answers_others_during_hanging_lookup(lab: ApiLab, hanging: Service) -> None:
    bearer = {"Authorization": f"Bearer {SECRET}"}
    slow = in_a_thread(lambda: lab.get("/me", headers=bearer, unix=False))
    assert hanging.hanging.acquire(timeout=LONGEST_S)
    assert lab.get("/me").json["uid"] == os.getuid()
    assert lab.submit(gpu_count=1).startswith("job-")
    hanging.answer()
    reply = slow()
    assert (reply.status, reply.json["user"]) == (200, "nobody")


def test_caller_whose_lookup_times_out_gets_retry_after(
    lab: ApiLab, hanging: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    people: Any = lab.applications.main
    monkeypatch.setattr(people._context.directory.accounts, "_timeout_s", 0.05)
    reply = lab.get("/me", headers={"Authorization": f"Bearer {SECRET}"}, unix=False)
    assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "cluster_error", "5")
    assert "user 'nobody' could not be looked up within 0.05 s on this server" in reply.error
    made = lab.post("/tokens", {"user": "nobody", "tenant_id": "default"})
    if os.getuid() == 0:
        assert (made.status, made.code) == (503, "cluster_error")
    hanging.answer()


def test_grpc_answers_others_during_hanging_lookup(lab: ApiLab, hanging: Service) -> None:
    async def scenario() -> None:
        server = grpc.aio.server()
        add_scheduler_service(server, SchedulerService(lab.applications.main))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            submit: Any = channel.unary_unary(
                f"/{SERVICE}/SubmitJob",
                request_serializer=pb.SubmitJobRequest.SerializeToString,
                response_deserializer=pb.SubmitJobAnswer.FromString,
            )
            asked = pb.SubmitJobRequest(job=pb.JobSpec(command=["true"]))
            bearer = (("authorization", f"Bearer {SECRET}"),)
            slow = submit(asked, metadata=bearer, timeout=LONGEST_S)
            await until_hanging(hanging)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await submit(asked, timeout=LONGEST_S)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            hanging.answer()
            assert (await slow).job_id.startswith("job-")
        await server.stop(None)

    lab.run(scenario())
