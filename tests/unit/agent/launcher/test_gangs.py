"""Members that wait for each other are let go together, or told who is missing."""

from collections.abc import Callable

from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt
from gpu_scheduler.agent.launcher.lifecycle.gang import Gangs
from gpu_scheduler.agent.work import Work


class Gang:
    """Three members; `heard` is what each was told."""

    def __init__(self) -> None:
        self.members = [self._member(number) for number in range(3)]
        self.heard: dict[int, str] = {}
        self.gangs = Gangs({one.key: one for one in self.members}, lambda step, why: step(why))

    def comes(self, number: int) -> None:
        self.gangs.meet(self.members[number], self._step(number))

    def fails(self, number: int) -> None:
        self.members[number].given_up = True
        self.gangs.gone(self.members[number])

    def _step(self, number: int) -> Callable[[str], None]:
        def hear(why: str) -> None:
            assert number not in self.heard
            self.heard[number] = why
            if why:
                self.fails(number)

        return hear

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
        return Attempt(work, None)


def test_all_are_let_go_when_the_last_one_has_come() -> None:
    gang = Gang()
    gang.comes(2)
    gang.comes(0)
    assert not gang.heard
    gang.comes(1)
    assert gang.heard == {0: "", 1: "", 2: ""}


def test_the_one_that_failed_is_named_to_all_others_however_late_they_come() -> None:
    told = "member 2 of the gang did not get ready"
    gang = Gang()
    gang.comes(1)
    gang.fails(2)
    assert gang.heard == {1: told}
    gang.comes(0)
    assert gang.heard == {0: told, 1: told}
