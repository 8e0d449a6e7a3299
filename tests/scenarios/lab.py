"""A small cluster on virtual time: a control core, a store, and nodes that execute every order."""

from typing import Any

from gpu_scheduler.control.effects import Outcome, StartOrder, StopOrder, WarnOrder
from gpu_scheduler.control.messages import Command, Ended, Fact, RunCycle, Started, Submit
from gpu_scheduler.model.job import Job, JobState
from gpu_scheduler.model.plan import Allocation, Plan
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.store.rows import JobRow
from tests.builders import a_core
from tests.interface.event_record import check_events


class Lab:
    """Jobs start at once when ordered, and run until the test ends them.

    Stop orders are executed at once; with `obedient=False` the test ends the attempt itself.
    """

    def __init__(self, *, obedient: bool = True, **changes: Any) -> None:
        self.core = a_core(**changes)
        self.store = MemoryStore()
        self.obedient = obedient
        self.now_ms = 0
        self.orders: list[Allocation] = []
        self.stops: list[StopOrder] = []
        self.warnings: list[WarnOrder] = []
        self.last_plan: Plan | None = None

    # --- actions

    def submit(self, *jobs: Job) -> None:
        """Submit jobs one after the other, then run a cycle."""
        for job in jobs:
            self.tell(Submit(job))
        self.cycle()

    def tell(self, message: Command | Fact) -> Outcome:
        """Apply one message, store its writes and execute its orders, without a cycle."""
        outcome = self.core.apply(message, self.now_ms)
        self.store.commit(outcome.writes)
        check_events(outcome.writes)
        for effect in outcome.effects:
            if isinstance(effect, StartOrder):
                self.orders.append(effect.allocation)
                self.tell(Started(effect.allocation.id))
            elif isinstance(effect, StopOrder):
                self.stops.append(effect)
                if self.obedient:
                    self.tell(Ended(effect.allocation_id, None, 15))
            elif isinstance(effect, WarnOrder):
                self.warnings.append(effect)
        return outcome

    def cycle(self) -> None:
        """Run cycles until nothing changes."""
        for _ in range(100):
            outcome = self.tell(RunCycle())
            self.last_plan = outcome.plan or self.last_plan
            if not outcome.effects and not self.core.wants_cycle:
                return

    def do(self, *messages: Command | Fact) -> None:
        """Messages, then a cycle."""
        for message in messages:
            self.tell(message)
        self.cycle()

    def at(self, now_ms: int) -> None:
        """Advance the time, with a cycle at every timer of the core and at the end."""
        while True:
            timer_ms = self.core.next_timer_ms()
            if timer_ms is None or timer_ms > now_ms:
                break
            self.now_ms = max(self.now_ms, timer_ms)
            self.cycle()
        self.now_ms = now_ms
        self.cycle()

    def ends(self, *names: str, **how: Any) -> None:
        """These jobs (or tasks, as `j1_0`) end by themselves, then a cycle."""
        for name in names:
            self.tell(Ended(self.allocation(name).id, **how))
        self.cycle()

    # --- observations

    def row(self, job_id: str) -> JobRow:
        """The stored row of a job."""
        row = self.store.job(job_id)
        assert row is not None, f"job {job_id} was never stored"
        return row

    def state(self, job_id: str) -> JobState:
        """The state of a job."""
        return self.row(job_id).state

    def tasks(self, job_id: str) -> dict[str, str]:
        """The tasks of an array by state, as ranges."""
        return {state.value: str(tasks) for state, tasks in self.row(job_id).tasks if tasks}

    def running(self) -> list[str]:
        """Jobs and tasks that hold something."""
        return sorted(_name(allocation) for allocation in self.store.allocations())

    def allocation(self, name: str) -> Allocation:
        """The allocation of a job or task."""
        found = [a for a in self.store.allocations() if _name(a) == name]
        assert found, f"{name} holds nothing; running are {self.running()}"
        return found[0]

    def nodes_of(self, name: str) -> list[str]:
        """The nodes of a job, member by member."""
        return [placement.node_id for placement in self.allocation(name).placements]

    def ever_started(self) -> list[str]:
        """Every start so far, in order."""
        return [_name(allocation) for allocation in self.orders]

    def stopped(self) -> list[tuple[str, str]]:
        """Every stop order so far, with its reason."""
        return [(stop.allocation_id, stop.why) for stop in self.stops]

    def events(self, job_id: str) -> list[str]:
        """The event kinds of a job."""
        return [row.kind for _, row in self.store.events() if row.job_id == job_id]


def _name(allocation: Allocation) -> str:
    return allocation.job_id + ("" if allocation.task is None else f"_{allocation.task}")
