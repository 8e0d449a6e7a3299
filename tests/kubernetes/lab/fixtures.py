"""The lab as pytest fixtures: one control plane for all tests of a process."""

from collections.abc import Iterator

import pytest

from tests.kubernetes.lab.build import CONTROL_PLANE, CannotBuild, Lab, find_go, lab
from tests.kubernetes.lab.control_plane import ControlPlane


def skip_unless_built(*programs: str) -> Lab:
    """The lab, if these programs are built; otherwise the test is skipped with the reason."""
    found = lab()
    missing = found.missing(programs)
    if missing:
        try:
            find_go()
            hint = "run 'make kubernetes-lab'"
        except CannotBuild as error:
            hint = f"{error}; then 'make kubernetes-lab' builds them"
        pytest.skip(f"Kubernetes {found.version}: not built: {', '.join(missing)} ({hint})")
    return found


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A real control plane: etcd, kube-apiserver, kube-controller-manager."""
    plane = ControlPlane(skip_unless_built(*CONTROL_PLANE))
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


@pytest.fixture(scope="session")
def kwok(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with kwok, which runs nodes made by `kwok_node`."""
    skip_unless_built("kwok")
    control_plane.start_kwok()
    return control_plane


@pytest.fixture(scope="session")
def kube_scheduler(kwok: ControlPlane) -> ControlPlane:
    """The control plane with kwok and kube-scheduler, the reference for what a node may run."""
    skip_unless_built("kube-scheduler")
    kwok.start_scheduler()
    return kwok
