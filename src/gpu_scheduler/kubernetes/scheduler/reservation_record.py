"""The reservations of blocked jobs in a ConfigMap, so that the next leader keeps them.

Reservations of the engine come in, and the same come out after a restart. The record is advice: it
may be late, lost or forbidden, and then jobs get new reservations. Whatever in it no longer fits
the cluster is dropped by the decision.
"""

from collections.abc import Iterable

import msgspec
import structlog

from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.client.errors import KubernetesError, NotFound
from gpu_scheduler.kubernetes.objects import CONFIG_MAPS
from gpu_scheduler.model.plan import Reservation

NAME = "gpu-scheduler-reservations"
KEY = "reservations.json"
MOST_BYTES = 500_000
"""A ConfigMap holds at most 1 MiB."""
_DECODER = msgspec.json.Decoder(tuple[Reservation, ...])

log = structlog.get_logger("kube-scheduler")


class ReservationRecord:
    """The ConfigMap of one scheduler."""

    def __init__(self, client: ApiClient, namespace: str) -> None:
        """Nothing is read or written yet."""
        self._client = client
        self._namespace = namespace

    async def read(self) -> tuple[Reservation, ...]:
        """What the last leader has written; nothing if that cannot be read."""
        try:
            found = await self._client.get(CONFIG_MAPS, NAME, self._namespace)
            return _DECODER.decode(found.data.get(KEY, "[]"))
        except NotFound:
            return ()
        except (KubernetesError, msgspec.MsgspecError) as error:
            log.warning("reservations not read; blocked jobs get new ones", error=str(error))
            return ()

    async def write(self, text: str) -> None:
        """Replace what is there."""
        content = {"data": {KEY: text}}
        try:
            await self._client.patch(CONFIG_MAPS, NAME, content, self._namespace)
        except NotFound:
            metadata = {"name": NAME, "namespace": self._namespace}
            await self._client.create(CONFIG_MAPS, {"metadata": metadata, **content})


def encoded(reservations: Iterable[Reservation]) -> str:
    """The reservations as text; the last ones are left out if there are too many."""
    texts: list[str] = []
    size = 2
    for one in reservations:
        text = msgspec.json.encode(one).decode()
        size += len(text) + 1
        if size > MOST_BYTES:
            break
        texts.append(text)
    return f"[{','.join(texts)}]"
