"""What a leader tells the next one in ConfigMaps: reservations of blocked jobs, and run times.

Values come in, and the same come out after a restart. A record is advice: it may be late, lost or
forbidden, and then jobs get new reservations, and run times are learnt from the pods that still
exist. Whatever in it no longer fits the cluster is dropped by the decision.
"""

from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec
import structlog

from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.client.errors import KubernetesError, NotFound
from gpu_scheduler.kubernetes.objects import CONFIG_MAPS
from gpu_scheduler.kubernetes.scheduler.run_times import Run
from gpu_scheduler.model.plan import Reservation

MOST_BYTES = 500_000
"""A ConfigMap holds at most 1 MiB."""

log = structlog.get_logger("kube-scheduler")
Kept = TypeVar("Kept")


class Record(Generic[Kept]):
    """The ConfigMap of one scheduler for one kind of values."""

    def __init__(
        self, client: ApiClient, namespace: str, *, name: str, key: str, kind: type[Kept]
    ) -> None:
        """Nothing is read or written yet."""
        self._client = client
        self._namespace = namespace
        self._key = key
        self._decoder = msgspec.json.Decoder(tuple[kind, ...])  # type: ignore[valid-type]
        self.name = name

    async def read(self) -> tuple[Kept, ...]:
        """What the last leader has written; nothing if that cannot be read."""
        try:
            found = await self._client.get(CONFIG_MAPS, self.name, self._namespace)
            return self._decoder.decode(found.data.get(self._key, "[]"))
        except NotFound:
            return ()
        except (KubernetesError, msgspec.MsgspecError) as error:
            log.warning("record not read; going on without it", record=self.name, error=str(error))
            return ()

    async def write(self, text: str) -> None:
        """Replace what is there."""
        content = {"data": {self._key: text}}
        try:
            await self._client.patch(CONFIG_MAPS, self.name, content, self._namespace)
        except NotFound:
            metadata = {"name": self.name, "namespace": self._namespace}
            await self._client.create(CONFIG_MAPS, {"metadata": metadata, **content})


def reservation_record(client: ApiClient, namespace: str) -> Record[Reservation]:
    """The reservations of blocked jobs."""
    return Record(
        client,
        namespace,
        name="gpu-scheduler-reservations",
        key="reservations.json",
        kind=Reservation,
    )


def run_time_record(client: ApiClient, namespace: str) -> Record[Run]:
    """How long pods ran that have ended."""
    return Record(client, namespace, name="gpu-scheduler-run-times", key="run-times.json", kind=Run)


def encoded(values: Iterable[object]) -> str:
    """The values as text; the last ones are left out if there are too many."""
    texts: list[str] = []
    size = 2
    for one in values:
        text = msgspec.json.encode(one).decode()
        size += len(text.encode()) + 1
        if size > MOST_BYTES:
            break
        texts.append(text)
    return f"[{','.join(texts)}]"
