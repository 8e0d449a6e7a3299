"""The second check of permissions, in the core: it holds whatever a handler forgot."""

from dataclasses import replace
from typing import Any

import pytest

from gpu_scheduler.control.access import permissions, queue_shares
from gpu_scheduler.control.core import Core
from gpu_scheduler.control.messages import (
    Cancel,
    Command,
    CreateService,
    Hold,
    MakeToken,
    Release,
    Reprioritise,
    Retry,
    RevokeToken,
    SetTenant,
    Submit,
    SubmitAll,
    Update,
)
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.model.errors import Forbidden, InvalidRequest, TooManyJobs, UnknownThing
from gpu_scheduler.model.identity import Caller, Role, Token
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.service import Service
from tests.builders import a_core, a_job, after, an_array

VISION = frozenset({"vision"})
ANN = Caller(user="ann", uid=1000, tenant="vision", tenants=VISION)
BOB = Caller(user="bob", uid=1001, tenant="vision", tenants=VISION)
VIEWER = Caller(user="ann", uid=1000, role=Role.VIEWER, tenant="vision", tenants=VISION)


@pytest.fixture
def core() -> Core:
    """Ann and Bob have a job each, which waits for want of nodes."""
    core = a_core()
    for user in ("ann", "bob"):
        core.apply(Submit(a_job(id=user, number=0, user=user)), 0)
    return core


@pytest.mark.parametrize("kind", [Cancel, Hold, Release, Retry])
def test_job_is_changed_only_by_its_owner(core: Core, kind: type) -> None:
    permissions.check(core.state, BOB, kind("bob"))
    with pytest.raises(Forbidden):
        permissions.check(core.state, ANN, kind("bob"))
    with pytest.raises(Forbidden, match="viewer"):
        permissions.check(core.state, VIEWER, kind("ann"))


def test_update_cannot_name_a_dependency_of_another_user(core: Core) -> None:
    """The wait would tell when the other job ends."""
    own = a_job(id="own", number=0, user="ann")
    core.apply(Submit(own), 0)
    permissions.check(core.state, ANN, Update("ann", (("dependencies", after("own")),)))
    with pytest.raises(InvalidRequest):
        permissions.check(core.state, ANN, Update("ann", (("dependencies", after("bob")),)))
    with pytest.raises(Forbidden):
        permissions.check(core.state, ANN, Update("bob", (("max_runtime_ms", 1),)))


def test_token_is_revoked_only_by_those_who_see_it(core: Core) -> None:
    token = Token(
        id="t1",
        secret_hash="h",
        user="bob",
        uid=BOB.uid,
        tenant="vision",
        created_by="bob",
        created_ms=0,
        expires_ms=1,
    )
    core.state.tokens["t1"] = token
    permissions.check(core.state, BOB, RevokeToken("t1"))
    for name in ("t1", "t2"):
        with pytest.raises(UnknownThing, match=f"token '{name}' is not known"):
            permissions.check(core.state, ANN, RevokeToken(name))


def test_token_grants_no_more_than_its_creator_has(core: Core) -> None:
    def wanted(**changes: Any) -> MakeToken:
        values: dict[str, Any] = {"user": "ann", "tenant": "vision", "role": Role.USER} | changes
        return MakeToken(
            Token(
                id="t1",
                secret_hash="h",
                uid=ANN.uid,
                created_by="ann",
                created_ms=0,
                expires_ms=1,
                **values,
            )
        )

    permissions.check(core.state, ANN, wanted())
    for change in ({"role": Role.TENANT_ADMIN}, {"user": "bob"}, {"tenant": "speech"}):
        with pytest.raises(Forbidden):
            permissions.check(core.state, ANN, wanted(**change))


def test_number_of_tokens_of_a_user_is_bounded(core: Core) -> None:
    def a_token(number: int, **changes: Any) -> Token:
        token = Token(
            id=f"t{number}",
            secret_hash=f"h{number}",
            user="ann",
            uid=ANN.uid,
            tenant="vision",
            created_by="ann",
            created_ms=10,
            expires_ms=20,
        )
        return replace(token, **changes)

    tokens = core.state.tokens
    for number in range(permissions.MOST_USABLE_TOKENS):
        permissions.check(core.state, ANN, MakeToken(a_token(number)))
        tokens[f"t{number}"] = a_token(number)
    new = a_token(permissions.MOST_TOKENS)
    with pytest.raises(Forbidden, match="revoke some"):
        permissions.check(core.state, ANN, MakeToken(new))
    permissions.check(core.state, replace(ANN, role=Role.ADMIN), MakeToken(new))
    tokens["t0"] = a_token(0, revoked_ms=11)
    permissions.check(core.state, ANN, MakeToken(new))
    ended = range(permissions.MOST_TOKENS)
    tokens |= {f"t{number}": a_token(number, expires_ms=5) for number in ended}
    with pytest.raises(Forbidden, match="with those that have ended"):
        permissions.check(core.state, ANN, MakeToken(new))


def test_number_of_services_of_a_user_is_bounded(core: Core) -> None:
    job = a_job(id="", number=0, user="ann", tenant="vision")
    launch = Launch(argv=("serve",), uid=ANN.uid or 0)
    service = Service(
        id="svc-1",
        number=1,
        name="s",
        tenant="vision",
        user="ann",
        job=job,
        launch=launch,
        replicas=0,
    )
    command = CreateService(service)
    most = permissions.MOST_SERVICES
    services = core.state.services
    services |= {f"svc-{number}": service for number in range(most - 1)}
    permissions.check(core.state, ANN, command)
    services["one more"] = service
    with pytest.raises(Forbidden, match="which is the limit; delete"):
        permissions.check(core.state, ANN, command)


def test_user_gives_no_higher_priority_than_the_limit() -> None:
    core = a_core(limits=CoreLimits(user_max_priority=1500))
    core.apply(Submit(a_job(id="ann", number=0, user="ann")), 0)
    boss = replace(ANN, role=Role.ADMIN)

    def commands(priority: int) -> list[Command]:
        job = a_job(id="", number=0, user="ann", tenant="vision", priority=priority)
        return [
            Submit(job),
            SubmitAll((Submit(job),)),
            Reprioritise("ann", priority),
            Update("ann", (("priority", priority),)),
        ]

    for command in commands(1500):
        permissions.check(core.state, ANN, command)
    for command in commands(1501):
        permissions.check(core.state, boss, command)
        with pytest.raises(Forbidden, match="at most 1500"):
            permissions.check(core.state, ANN, command)


def test_commands_of_admins_are_rejected_for_users(core: Core) -> None:
    tenant = core.state.cluster.tenant("vision")
    with pytest.raises(Forbidden, match="only an admin"):
        permissions.check(core.state, ANN, SetTenant(tenant))


def test_every_task_of_a_bulk_submission_counts_for_the_share() -> None:
    limits = CoreLimits(max_queued_tasks=100, user_queue_percent=50, admin_queue_percent=10)
    core = a_core(limits=limits)
    arrays = [Submit(an_array(id="", tasks="0-14", user="ann")) for _ in range(4)]
    queue_shares.check(core.state, ANN, SubmitAll(tuple(arrays[:3])))
    with pytest.raises(TooManyJobs, match="may have 45 jobs waiting"):
        queue_shares.check(core.state, ANN, SubmitAll(tuple(arrays)))


def test_priority_is_changed_only_by_owner(core: Core) -> None:
    with pytest.raises(Forbidden):
        permissions.check(core.state, ANN, Reprioritise("bob", 1))
