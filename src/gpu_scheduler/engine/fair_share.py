"""Fair share: decayed usage of tenants and users in, a penalty on their waiting jobs out.

The penalty is in milliseconds of waiting, like every other weight of the order, so that aging wins
in the end.
"""

from __future__ import annotations

from gpu_scheduler.engine.policy import HOUR_MS
from gpu_scheduler.engine.queue import Entry, GroupKey
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.model.tenant import WEIGHT_ONE_MILLI

MILLI = 1000
PROJECTED_MS = HOUR_MS
"""A job that starts counts at once as if it had run for up to an hour; later, control adds that."""
LEAST_USAGE = WHOLE_MILLI * HOUR_MS
"""Shares are measured against at least a GPU-hour each, so that a cold start is fair as well."""


def fair_ratio_milli(usage: int, weight_milli: int, total_usage: int, total_weight: int) -> int:
    """How many fair shares an account has had: 1000 is exactly its fair share."""
    if total_usage <= 0:
        return 0
    return usage * total_weight * MILLI // (weight_milli * total_usage)


class FairShare:
    """What the decayed usage of each account adds to the keys of its waiting jobs, in milliseconds.

    It only grows during a cycle, as the cycle starts jobs.
    """

    def __init__(self, state: ClusterState) -> None:
        """Sum up the usage of all accounts that have waiting jobs."""
        order = state.policy.order
        self._order = order
        self._state = state
        self._on = order.is_fair
        self._added: dict[str | tuple[str, str], int] = {}
        self._cache: dict[tuple[str, str], int] = {}
        if not self._on:
            return
        accounts = dict.fromkeys((key[0], key[1]) for key in state.queue.groups)
        active = dict.fromkeys(tenant for tenant, _ in accounts)
        self._total_weight = sum(state.tenant(tenant).weight_milli for tenant in active)
        usage = sum(self._tenant_usage(tenant) for tenant in active)
        self._total_usage = max(usage, LEAST_USAGE * len(active))
        self._user_totals: dict[str, tuple[int, int]] = {}
        for tenant, user in accounts:
            total, count = self._user_totals.get(tenant, (0, 0))
            self._user_totals[tenant] = (total + self._user_usage(tenant, user), count + 1)

    def penalty_ms(self, group: GroupKey) -> int:
        """How far back an account's use puts its jobs now."""
        if not self._on:
            return 0
        account = (group[0], group[1])
        penalty = self._cache.get(account)
        if penalty is None:
            penalty = self._cache[account] = self._penalty(*account)
        return penalty

    def penalties_ms(self) -> tuple[tuple[tuple[str, str], int], ...]:
        """The penalties of all accounts with waiting jobs; empty without fair share."""
        if not self._on:
            return ()
        accounts = {(tenant, user): pool for tenant, user, pool in self._state.queue.groups}
        return tuple((key, self.penalty_ms((*key, accounts[key]))) for key in sorted(accounts))

    def order_value(self, entry: Entry) -> int:
        """The place of a job in the order now: its static key and the penalty of its account."""
        return entry.key + self.penalty_ms(entry.group.key)

    def add_start(self, job: Job, gpu_milli: int, expected_ms: int) -> None:
        """Count a job that the cycle starts, so that one account does not get everything."""
        if not self._on:
            return
        usage = gpu_milli * min(expected_ms, PROJECTED_MS)
        account = (job.tenant, job.user)
        self._added[job.tenant] = self._added.get(job.tenant, 0) + usage
        self._added[account] = self._added.get(account, 0) + usage
        for known in [known for known in self._cache if known[0] == job.tenant]:
            del self._cache[known]

    def _tenant_usage(self, tenant: str) -> int:
        usage = self._state.tenant_usage.get(tenant)
        return self._added.get(tenant, 0) + (usage.usage if usage else 0)

    def _user_usage(self, tenant: str, user: str) -> int:
        usage = self._state.user_usage.get((tenant, user))
        return self._added.get((tenant, user), 0) + (usage.usage if usage else 0)

    def _penalty(self, tenant: str, user: str) -> int:
        order = self._order
        penalty = 0
        if order.fair_ms:
            ratio = fair_ratio_milli(
                self._tenant_usage(tenant),
                self._state.tenant(tenant).weight_milli,
                self._total_usage,
                self._total_weight,
            )
            penalty += order.fair_ms * min(order.fair_cap * MILLI, ratio) // MILLI
        if order.user_fair_ms:
            total, count = self._user_totals[tenant]
            ratio = fair_ratio_milli(
                self._user_usage(tenant, user),
                WEIGHT_ONE_MILLI,
                max(total, LEAST_USAGE * count),
                count * WEIGHT_ONE_MILLI,
            )
            penalty += order.user_fair_ms * min(order.fair_cap * MILLI, ratio) // MILLI
        return penalty
