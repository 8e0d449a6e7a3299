"""Gang members at the gate continue together, or learn which one failed."""

from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt
from gpu_scheduler.agent.launcher.lifecycle.start_gate import GangBarrier
from gpu_scheduler.agent.launcher_protocol import Work


class Gang:
    """Three members; `steps` has the reason passed to each callback."""

    def __init__(self) -> None:
        self.members = [self._member(number) for number in range(3)]
        self.steps: dict[int, str] = {}
        attempts = {one.key: one for one in self.members}
        self.barrier = GangBarrier(attempts, lambda step, *arguments: step(*arguments))

    def wait(self, number: int) -> None:
        self.barrier.wait(self.members[number], self._step)

    def fail(self, number: int) -> None:
        self.members[number].start.timed_out = True
        self.barrier.member_failed(self.members[number])

    def _step(self, attempt: Attempt, reason: str) -> None:
        number = attempt.key[1]
        assert number not in self.steps
        self.steps[number] = reason
        if reason:
            self.fail(number)

    @staticmethod
    def _member(number: int) -> Attempt:
        work = Work(
            allocation_id="g.1",
            job_id="g",
            argv=("true",),
            workdir="/",
            environment={},
            uid=1,
            gid=1,
            member=number,
            members_here=3,
            log_path="",
            scratch_dir="",
            grace_ms=0,
        )
        return Attempt(work)


def test_all_members_continue_when_last_is_ready() -> None:
    gang = Gang()
    gang.wait(2)
    gang.wait(0)
    assert not gang.steps
    gang.wait(1)
    assert gang.steps == {0: "", 1: "", 2: ""}


def test_all_members_learn_which_one_failed_even_if_they_arrive_later() -> None:
    reason = "member 2 of the gang did not get ready"
    gang = Gang()
    gang.wait(1)
    gang.fail(2)
    assert gang.steps == {1: reason}
    gang.wait(0)
    assert gang.steps == {0: reason, 1: reason}
