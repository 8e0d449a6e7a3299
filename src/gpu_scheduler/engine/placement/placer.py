"""Places a job on the allowed nodes by the policy's ranking."""

from __future__ import annotations

from gpu_scheduler.engine.placement.anti_affinity import AntiAffinity
from gpu_scheduler.engine.placement.gangs import place_gang
from gpu_scheduler.engine.placement.scoring import Scorer, needs_vectors
from gpu_scheduler.engine.policy import Ranking
from gpu_scheduler.engine.queue import JobShape
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.engine.state.equivalence_classes import RequestShape
from gpu_scheduler.engine.state.node_resources import Grant
from gpu_scheduler.engine.state.transaction import Transaction
from gpu_scheduler.model.job import Job


class Placer:
    """Finds places for one cycle. `started` counts its starts, for the random ranking."""

    def __init__(self, state: ClusterState, transaction: Transaction) -> None:
        """Search the cluster state as the transaction has changed it."""
        policy = state.policy
        self._index = state.index
        self.transaction = transaction
        self._scorer = Scorer(state) if needs_vectors(policy.ranking) else None
        self._spread = policy.ranking is Ranking.SPREAD
        self._remainder = self._find_freest if policy.remainder_on_freest else None
        self.started = 0
        self.anti_affinity = AntiAffinity(state.anti_affinity_counts, state.index)

    def place_with_anti_affinity(
        self, job: Job, shape: JobShape, within: int | None
    ) -> list[Grant] | None:
        """The same as `place`, on the nodes with the fewest other replicas of the job's service."""
        for nodes in self.anti_affinity.preferred_nodes(job, within):
            grants = self.place(shape, nodes)
            if grants is not None:
                return grants
        return None

    def place(self, job_shape: JobShape, within: int | None) -> list[Grant] | None:
        """Take a place for every member in the transaction; None leaves it unchanged."""
        grants = place_gang(
            job_shape, self.transaction, self.find, within=within, find_remainder=self._remainder
        )
        if grants is None and self._scorer is not None and len(job_shape.members) > 1:
            # A high score for one member can be the wrong place for the gang.
            grants = place_gang(job_shape, self.transaction, self._index.find, within=within)
        return grants

    def fits(self, job_shape: JobShape) -> bool:
        """Tell whether there is a place, reserved or not; the transaction is left unchanged."""
        if len(job_shape.members) == 1:
            return self.find(job_shape.members[0], None) is not None
        mark = self.transaction.mark()
        grants = self.place(job_shape, None)
        self.transaction.undo(mark)
        return grants is not None

    def find(self, shape: RequestShape, within: int | None) -> Grant | None:
        """A place for one member."""
        if shape.preferred is not None:
            grant = self.find(self._index.shape(shape.preferred), within)
            if grant is not None:
                return grant
        if shape.request.spread:
            return self._find_freest(shape, within)
        if self._scorer is not None:
            return self._scorer.find(shape, within, self.started)
        return self._index.find(shape, within, spread=self._spread)

    def _find_freest(self, shape: RequestShape, within: int | None) -> Grant | None:
        return self._index.find(shape, within, spread=True)
