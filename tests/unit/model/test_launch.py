"""Launches that no agent could or may run are rejected before they are queued."""

import pytest

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.launch import Launch, Mount, Runner

OPTIONS = ("--privileged", "-v/:/host", "--user=0:0")


@pytest.mark.parametrize("image", [*OPTIONS, "a b", "a\nb", "a\x7f", "rootfs:here", "rootfs:/a:O"])
def test_image_cannot_be_engine_option(image: str) -> None:
    with pytest.raises(InvalidRequest):
        Launch(image=image, runner=Runner.CONTAINER)


@pytest.mark.parametrize(
    "image", ["alpine", "host:5000/a/b:1.2", "a@sha256:0f", "rootfs:/srv/my images/one"]
)
def test_image_names_are_taken_literally(image: str) -> None:
    assert Launch(image=image, runner=Runner.CONTAINER).image == image


@pytest.mark.parametrize(
    ("source", "target"),
    [("data", "/data"), ("/data", "data"), ("/a:/etc", "/b"), ("/a", "/b:rw"), ("/a\n", "/b")],
)
def test_mount_is_two_paths(source: str, target: str) -> None:
    with pytest.raises(InvalidRequest):
        Mount(source, target)
