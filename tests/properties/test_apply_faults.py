"""Guarantee: an error anywhere while a message is applied leaves everything as it was.

The core may be half changed then. It refuses every further message, and the control loop goes on
with a core that is read from the store, into which nothing of the message was written.
"""

import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import isfunction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpu_scheduler.control as package
from gpu_scheduler.control import messages as m
from gpu_scheduler.control.core import HANDLERS, Core
from gpu_scheduler.control.restore import restore
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.model.errors import InternalError, SchedulerError
from tests.builders import a_core, a_job, a_node, an_array
from tests.effort import examples
from tests.properties.dump import contents, differences
from tests.properties.rig import Rig
from tests.properties.strategies import BRISK, Scenario, policies, scenarios
from tests.properties.test_rejections import CACHES, commands


class Injected(Exception):
    """An error that no code expects."""


def functions() -> list[tuple[Any, str, Any]]:
    """All functions of the control package, as `module.name`."""
    found = []
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if info.name.endswith((".loop", ".restore", ".writer", ".clock", ".self_monitoring")):
            continue
        module = importlib.import_module(info.name)
        found += [
            (module, name, value)
            for name, value in sorted(vars(module).items())
            if isfunction(value) and value.__module__.startswith(package.__name__)
        ]
    return found


FUNCTIONS = functions()


@contextmanager
def failing_at(countdown: int) -> Iterator[list[int]]:
    """Let the n-th call of any function of the control package fail; yields the calls so far."""
    calls = [0]

    def watched(original: Any) -> Any:
        def called(*args: Any, **named: Any) -> Any:
            calls[0] += 1
            if calls[0] == countdown + 1:
                raise Injected
            return original(*args, **named)

        return called

    with pytest.MonkeyPatch.context() as patch:
        for module, name, original in FUNCTIONS:
            patch.setattr(module, name, watched(original))
        yield calls


def facts(rig: Rig) -> list[m.Command | m.Fact]:
    """What nodes report, and what time brings."""
    found: list[m.Command | m.Fact] = [m.RunCycle(), m.SetNode(a_node(id="new", ordinal=90))]
    for name in list(rig.attempts)[:3]:
        found += [
            m.Started(name),
            m.Ended(name, 0),
            m.Ended(name, 1),
            m.Ended(name, None, 9, 1_000),
            m.Checkpointed(name, 0),
        ]
    nodes = list(rig.core.state.cluster.index.by_id)[:2]
    for node in nodes:
        found += [m.NodeSilent(node), m.NodeLost(node), m.NodeFenced(node), m.Cordon(node, "a", "")]
    return [
        *found,
        m.Submit(a_job(id="", number=0)),
        m.Submit(an_array(id="", number=0)),
        m.SubmitAll((m.Submit(a_job(id="", number=0)), m.Submit(a_job(id="", number=0)))),
    ]


@settings(max_examples=examples(80))
@given(
    scenario=scenarios(),
    policy=policies(),
    most=st.integers(1, 12),
    countdown=st.integers(0, 40),
    choices=st.data(),
)
def test_error_at_any_point_of_a_message_changes_nothing(
    scenario: Scenario, policy: str, most: int, countdown: int, choices: st.DataObject
) -> None:
    rig = Rig(scenario, policy)
    for _ in range(most):
        if not rig.advance():
            break
    rig.predictor.run_ms = defaultdict(lambda: 1_000, rig.predictor.run_ms)
    offered = facts(rig) + commands(
        [*rig.record.submitted][:4],
        [node.id for node in scenario.nodes][:2],
        [tenant.id for tenant in scenario.tenants][:1],
    )
    message = choices.draw(st.sampled_from(offered))
    stored = contents(rig.store, "store")
    before = contents(rig.core, "core", CACHES)
    with failing_at(countdown):
        try:
            rig.core.apply(message, rig.now_ms)
        except InternalError:
            pass
        except SchedulerError:
            assert differences(before, contents(rig.core, "core", CACHES)) == {}, message
            return
        except Injected:
            pass
        else:
            return  # it made fewer calls
    assert differences(stored, contents(rig.store, "store")) == {}
    with pytest.raises(InternalError, match="read it from the store"):
        rig.core.apply(m.RunCycle(), rig.now_ms)
    fresh = Core(BRISK[policy], rig.predictor, CoreLimits(backoff_ms=1_000))
    restore(fresh.state, rig.store, rig.now_ms)
    fresh.apply(m.RunCycle(), rig.now_ms)


@pytest.mark.parametrize("kind", HANDLERS, ids=lambda kind: kind.__name__)
def test_core_refuses_messages_after_an_error_in_any_kind(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise Injected

    core = a_core()
    monkeypatch.setitem(HANDLERS, kind, fails)
    with pytest.raises(Injected):
        core.apply(object.__new__(kind), 0)
    with pytest.raises(InternalError, match=kind.__name__):
        core.apply(m.SetNode(a_node()), 0)
