"""The conditions that the status of each of our objects has, in the form of Kubernetes."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from gpu_scheduler.kubernetes.crds.schema import documented, keyed_by
from gpu_scheduler.kubernetes.objects import Value


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Value, frozen=True, kw_only=True):
    """One aspect of the state."""

    type: Annotated[str, documented("The aspect, in CamelCase.", max_length=316)]
    status: Annotated[ConditionStatus, documented("Whether it holds: True, False or Unknown.")]
    reason: Annotated[
        str,
        documented("Why, as one word in CamelCase for programs.", min_length=1, max_length=1024),
    ]
    message: Annotated[str, documented("Why, as a sentence.", max_length=32768)]
    last_transition_time: Annotated[datetime, documented("When the status last changed.")]
    observed_generation: Annotated[
        int | None, documented("The generation of the spec that this is about.", minimum=0)
    ] = None


Conditions = Annotated[
    tuple[Condition, ...],
    documented("The aspects of the state, one entry for each.", **keyed_by("type")),
]
