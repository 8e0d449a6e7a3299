"""A copy made by `copy_factory` equals one made by the constructor."""

from dataclasses import FrozenInstanceError, replace

import pytest

from gpu_scheduler.model.job import Job
from gpu_scheduler.store.job_columns import copy_factory


def test_copy_equals_replace() -> None:
    job = Job(id="job-1", number=1, submit_ms=5, name="first", command=("a",), priority=3)
    copy = copy_factory(job, ("id", "number", "name", "command"))("job-2", 2, "second", ("b",))
    assert copy == replace(job, id="job-2", number=2, name="second", command=("b",))
    assert (type(copy), hash(copy)) == (Job, hash(replace(copy)))


def test_copy_is_frozen() -> None:
    job = Job(id="job-1", number=1, submit_ms=5)
    copy = copy_factory(job, ("id",))("job-2")
    with pytest.raises(FrozenInstanceError):
        copy.id = "job-3"


def test_two_factories_of_one_class_do_not_mix() -> None:
    one = copy_factory(Job(id="job-1", number=1, submit_ms=5, tenant="a"), ("id",))
    two = copy_factory(Job(id="job-1", number=2, submit_ms=5, tenant="b"), ("id",))
    assert [(copy("x").number, copy("x").tenant) for copy in (one, two)] == [(1, "a"), (2, "b")]
