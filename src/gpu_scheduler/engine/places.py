"""Where a job goes among the places that it may have: by the policy's ranking, member by member."""

from __future__ import annotations

from gpu_scheduler.engine import gang
from gpu_scheduler.engine.apart import Distance
from gpu_scheduler.engine.draft import Draft
from gpu_scheduler.engine.picture import Picture
from gpu_scheduler.engine.policy import Ranking
from gpu_scheduler.engine.queue import JobShape
from gpu_scheduler.engine.scores import Scorer, needs_vectors
from gpu_scheduler.engine.shape import Shape
from gpu_scheduler.engine.slot import Hold
from gpu_scheduler.model.job import Job


class Places:
    """Finds places for one cycle. `started` counts its starts, for rankings that go by chance."""

    def __init__(self, picture: Picture, draft: Draft) -> None:
        """Look at the picture as the draft has it."""
        policy = picture.policy
        self._index = picture.index
        self.draft = draft
        self._scorer = Scorer(picture) if needs_vectors(policy.ranking) else None
        self._spread = policy.ranking is Ranking.SPREAD
        self._remainder = self._find_freest if policy.remainder_on_freest else None
        self.started = 0
        self.distance = Distance(picture.apart, picture.index)

    def place_apart(self, job: Job, shape: JobShape, within: int | None) -> list[Hold] | None:
        """The same as `place`, where the fewest other replicas of the job's service are."""
        for nodes in self.distance.choices(job, within):
            holds = self.place(shape, nodes)
            if holds is not None:
                return holds
        return None

    def place(self, job_shape: JobShape, within: int | None) -> list[Hold] | None:
        """A place for every member, taken in the draft; or None, and the draft is as it was."""
        holds = gang.place(
            job_shape, self.draft, self.find, within=within, find_remainder=self._remainder
        )
        if holds is None and self._scorer is not None and len(job_shape.members) > 1:
            # A high score for one member can be the wrong place for the gang.
            holds = gang.place(job_shape, self.draft, self._index.find, within=within)
        return holds

    def fits(self, job_shape: JobShape) -> bool:
        """Tell whether there is a place, whoever counts on it; the draft is left as it was."""
        if len(job_shape.members) == 1:
            return self.find(job_shape.members[0], None) is not None
        mark = self.draft.mark()
        holds = self.place(job_shape, None)
        self.draft.undo(mark)
        return holds is not None

    def find(self, shape: Shape, within: int | None) -> Hold | None:
        """A place for one member."""
        if self._scorer is not None:
            return self._scorer.find(shape, within, self.started)
        return self._index.find(shape, within, spread=self._spread)

    def _find_freest(self, shape: Shape, within: int | None) -> Hold | None:
        return self._index.find(shape, within, spread=True)
