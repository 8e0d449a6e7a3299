"""Guarantee: a rejected message leaves every field of the core as it was."""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.control import messages as m
from gpu_scheduler.model.errors import InternalError, SchedulerError
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.plan import ReservationSpec
from tests.builders import a_job, after, an_array
from tests.effort import examples
from tests.properties.dump import SHAPE_TABLES, contents, differences
from tests.properties.rig import Rig
from tests.properties.strategies import Scenario, policies, scenarios

UNKNOWN = "nobody-knows-it"
TOO_BIG = a_job(id="big", gpus=4_096)
CACHES = (
    *("core.state._members", "core.state.cluster.tenants"),
    *(f"core.state.cluster.{name}" for name in SHAPE_TABLES),
)
"""What a rejected submission may leave behind: equal requests as one object, and where they fit."""


def commands(names: list[str], nodes: list[str], tenants: list[str]) -> list[m.Command | m.Fact]:
    """Commands about things that exist, have ended or are unknown, and some that never succeed."""
    found: list[m.Command | m.Fact] = [
        m.Submit(TOO_BIG),
        m.Submit(a_job(id="", number=0, dependencies=after(UNKNOWN))),
        m.SubmitAll((m.Submit(a_job(id="", number=0)), m.Submit(TOO_BIG))),
        m.SubmitAll((m.Submit(a_job(id="", number=0)), m.Submit(a_job(id="")))[:1], dry_run=True),
        m.Reserve(ReservationSpec(tenant=UNKNOWN, gpus=1, start_ms=0, end_ms=1)),
        m.CancelReservation(UNKNOWN),
        m.ScaleService(UNKNOWN, 3),
        m.DeleteService(UNKNOWN),
        m.RevokeToken(UNKNOWN),
        m.RevokeJoinToken(UNKNOWN),
        m.RevokeNode(UNKNOWN),
        m.JoinNode(UNKNOWN, UNKNOWN, "aa", 1),
        m.RenewNode(UNKNOWN, "aa", "bb", 1),
    ]
    for name in [*names, UNKNOWN]:
        found += [
            m.Submit(a_job(id=name)),
            m.SubmitAll((m.Submit(a_job(id="", number=0)), m.Submit(an_array(id=name)))),
            m.Cancel(name),
            m.Cancel(name, IntervalSet(((0, 99),))),
            m.Hold(name),
            m.Release(name),
            m.Reprioritise(name, 7),
            m.Retry(name),
            m.Retry(name, cancelled=True),
            m.Update(name, (("dependencies", after(UNKNOWN)),)),
            m.Update(name, (("dependencies", after(name)),)),
            m.Update(name, (("max_runtime_ms", 1),)),
        ]
    for node in [*nodes, UNKNOWN]:
        found += [
            m.Uncordon(node),
            m.Drain(node, within_ms=0),
            m.LabelNode(node, (("tgpu/own", "1"),)),
            m.LabelNode(node, tuple((f"l{place}", "1") for place in range(200))),
            m.RemoveNode(node),
            m.ConfirmDead(node, "root", silent_ms=1),
            m.PauseDevice(node, 99),
            m.ResumeDevice(node, 0),
        ]
    return found + [m.RemoveTenant(tenant) for tenant in [*tenants, UNKNOWN]]


@settings(max_examples=examples(150))
@given(scenario=scenarios(), policy=policies(), most=st.integers(0, 12), choices=st.data())
def test_rejected_message_changes_no_field_of_the_core(
    scenario: Scenario, policy: str, most: int, choices: st.DataObject
) -> None:
    rig = Rig(scenario, policy)
    for _ in range(most):
        if not rig.advance():
            break
    core = rig.core
    rig.predictor.run_ms = defaultdict(lambda: 1_000, rig.predictor.run_ms)
    names = [*rig.record.submitted][:6]
    offered = commands(
        names, [node.id for node in scenario.nodes], [tenant.id for tenant in scenario.tenants]
    )
    picked = choices.draw(st.lists(st.sampled_from(offered), min_size=4, max_size=10))
    for message in picked:
        before = contents(core, "core", CACHES)
        try:
            core.apply(message, rig.now_ms)
        except InternalError:
            raise
        except SchedulerError:
            assert differences(before, contents(core, "core", CACHES)) == {}, message
