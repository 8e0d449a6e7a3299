"""`--kube` and `kubectl gpu`: a fleet, read over HTTP, printed as elsewhere."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpu_scheduler.api.routes.cluster import GpuForm, QuotaNodeForm
from gpu_scheduler.api.routes.explain import Explanation
from gpu_scheduler.api.routes.job_views import JobForm, JobLine
from gpu_scheduler.api.routes.nodes import NodeDetail
from gpu_scheduler.cli.cluster.kubernetes import kubectl_main
from gpu_scheduler.cli.jobs.columns import HEADINGS
from gpu_scheduler.cli.main import main
from gpu_scheduler.kubernetes.client.client import Answer
from gpu_scheduler.kubernetes.fleet.devices import gpu_documents, node_documents
from gpu_scheduler.kubernetes.fleet.jobs import (
    explanation,
    fleet_jobs,
    job_document,
    job_line,
    quota_documents,
)
from gpu_scheduler.kubernetes.names import INDICES_ANNOTATION
from tests.fakes.kubernetes.api import CUSTOM_KINDS, KINDS, FakeApi, Fault
from tests.fakes.kubernetes.server import serve
from tests.kubernetes_objects import (
    NAMESPACE,
    NOW_MS,
    Manifest,
    a_claim,
    a_gpu,
    a_node,
    a_node_status,
    a_pod,
    a_queue,
    objects_of,
)

PATHS = {kind.kind: path for path, kind in {**KINDS, **CUSTOM_KINDS}.items()}
WAITS = "waiting for 2 GPUs; the largest node has 1 free"


def told(reason: str) -> dict[str, Any]:
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": reason,
    }


def a_fleet() -> list[Manifest]:
    """Two nodes; a running pod, one that waits, and a gang of two."""
    running = a_pod("web", gpus=1, node="n1", annotations={INDICES_ANNOTATION: "0"})
    running["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-05-04T11:00:00Z"}
    ]
    waiting = a_pod("big", claim="two")
    waiting["status"]["conditions"] = [told(WAITS)]
    claim = a_claim("two", devices={"count": 2}, queue="vision")
    claim["status"] = {
        "phase": "Pending",
        "reason": WAITS,
        "queuePosition": 3,
        "expectedStart": {"likely": "2026-05-04T13:00:00Z", "latest": "2026-05-04T15:00:00Z"},
    }
    queue = a_queue("vision", namespaces=[NAMESPACE], quotas=[{"guaranteed": 4}])
    queue["status"] = {"usage": [{"model": "*", "allocated": 1.0, "borrowed": 0.0, "lent": 2.0}]}
    broken = a_gpu(1, health={"state": "Unhealthy", "reason": "XID 79"})
    inventory = a_node_status("n1", [a_gpu(0), broken])
    del inventory["status"]["heartbeatTime"]  # the command reads it by the real clock
    return [
        a_node("n1", gpus=2, labels={"zone": "a"}),
        a_node("n2", gpus=1, unschedulable=True),
        inventory,
        running,
        waiting,
        claim,
        a_claim("gang", gang={"minMembers": 2}, maxRunTimeSeconds=3600),
        *(
            a_pod(f"w{n}", claim="gang", node="n2", annotations={INDICES_ANNOTATION: str(n)})
            for n in range(2)
        ),
        a_pod("other", gpus=1, node="n2", namespace="elsewhere"),
        queue,
    ]


class FakeCluster:
    """A fake API server in a thread of its own, and its kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        self.api = FakeApi()
        self.kubeconfig = kubeconfig
        self._ended: Callable[[], None] = lambda: None
        self._url = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._ended = lambda: loop.call_soon_threadsafe(ended.set)
        async with serve(self.api) as url:
            self._url = url
            self._ready.set()
            await ended.wait()

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(60)
        config = {
            "current-context": "one",
            "clusters": [{"name": "c", "cluster": {"server": self._url}}],
            "contexts": [
                {"name": "one", "context": {"cluster": "c", "namespace": NAMESPACE}},
                {"name": "two", "context": {"cluster": "c", "namespace": "elsewhere"}},
            ],
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def stop(self) -> None:
        self._ended()
        self._thread.join(60)

    def has(self, *manifests: Manifest) -> None:
        for one in manifests:
            self.api._store(PATHS[one["kind"]], one)

    def answers(self, plural: str, code: int) -> None:
        """Refuse to list a resource."""
        answer = Answer(status=code, headers={}, body=json.dumps({"code": code}).encode())
        self.api.faults.append(
            Fault(matches=lambda request: request.path.endswith(plural), times=99, answer=answer)
        )


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    made = FakeCluster(tmp_path / "config")
    made.start()
    monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    made.has(*a_fleet())
    try:
        yield made
    finally:
        made.stop()
        monkeypatch.undo()
        time.tzset()


def test_list_shows_pods_and_gangs_of_the_namespace_with_their_reasons(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "--kube"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == list(HEADINGS)
    rows = {line.split()[0]: line for line in lines[1:]}
    assert set(rows) == {"ml/web", "ml/gang", "ml/big"}
    assert "n1[0]" in rows["ml/web"]
    assert "2x1" in rows["ml/gang"]
    assert f"({WAITS})" in rows["ml/big"]


def test_other_namespaces_by_option_context_or_all(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, expected in (
        (["-n", "elsewhere"], {"elsewhere/other"}),
        (["--context", "two"], {"elsewhere/other"}),
        (["-A"], {"ml/web", "ml/big", "ml/gang (gang)", "elsewhere/other"}),
    ):
        assert main(["list", "--kube", "--json", *options]) == 0
        jobs = json.loads(capsys.readouterr().out)["jobs"]
        assert {job["id"] for job in jobs} == expected


def test_explain_finds_a_pod_by_its_name_or_its_claim(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("big", "two", "ml/big"):
        assert main(["explain", "--kube", name]) == 0
        text = capsys.readouterr().out
        assert WAITS in text
        assert "queue position  3" in text
        assert "expected start  2026-05-04 13:00:00" in text
    assert main(["explain", "--kube", "nothing"]) == 2
    assert "no pod or GpuClaim 'nothing'" in capsys.readouterr().err


def test_gpus_nodes_and_quota_are_the_tables_of_a_server(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gpus", "--kube"]) == 0
    text = capsys.readouterr().out
    assert "n1:0" in text
    assert "ml/web (ml)" in text
    assert "GPU n1:1: XID 79" in text
    assert main(["nodes", "--kube"]) == 0
    text = capsys.readouterr().out
    assert "zone=a" in text
    assert "kubernetes.io" not in text
    assert "cordoned" in text
    assert main(["nodes", "show", "n1", "--kube"]) == 0
    assert "ml/web" in capsys.readouterr().out
    assert main(["quota", "--kube"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["vision", "1", "1", "4", "0", "2"]


def test_top_once_shows_the_fleet(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--kube", "--once"]) == 0
    text = capsys.readouterr().out
    assert "2 nodes" in text
    assert "2 running, 1 pending" in text
    assert "ml/big" in text
    assert "elsewhere" not in text.partition("Jobs")[2]


def test_nothing_is_changed_by_kube(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nodes", "cordon", "n1", "--kube"]) == 2
    assert "use kubectl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("plural", "code", "sentence"),
    [
        ("gpuclaims", 404, "gpu-scheduler is not installed there"),
        ("pods", 403, "you may not list pods in namespace 'ml'"),
        ("pods", 401, "does not accept your credentials"),
        ("pods", 400, "could not be read"),
    ],
)
def test_an_error_says_what_is_missing(
    cluster: FakeCluster,
    capsys: pytest.CaptureFixture[str],
    plural: str,
    code: int,
    sentence: str,
) -> None:
    cluster.answers(plural, code)
    assert main(["list", "--kube"]) != 0
    assert sentence in capsys.readouterr().err


def test_a_user_of_one_namespace_needs_no_rights_on_queues(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.answers("gpuqueues", 403)
    assert main(["list", "--kube"]) == 0
    assert main(["list", "--kube", "-A"]) == 2
    assert "gpu-scheduler-fleet-view" in capsys.readouterr().err


def test_wrong_options_are_rejected(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, sentence in (
        (["--server", "unix:/x"], "leave it out with --kube"),
        (["-A", "-n", "ml"], "leave out one"),
        (["-u", "ann"], "use --namespace"),
        (["--context", "three"], "known contexts: one, two"),
    ):
        assert main(["list", "--kube", *options]) == 2
        assert sentence in capsys.readouterr().err


def test_kubectl_gpu_is_the_same_command(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["kubectl-gpu", "get", "-q"])
    assert kubectl_main() == 0
    assert "ml/web" in capsys.readouterr().out.splitlines()
    monkeypatch.setattr("sys.argv", ["kubectl-gpu", "submit"])
    assert kubectl_main() == 2
    assert "unknown command 'submit'" in capsys.readouterr().err


def test_documents_are_those_of_the_rest_api() -> None:
    objects = objects_of(*a_fleet())
    jobs = fleet_jobs(objects)
    documents: list[tuple[dict[str, Any], type[msgspec.Struct]]] = [
        *((job_document(job), JobForm) for job in jobs),
        *((job_line(job), JobLine) for job in jobs),
        *((explanation(job), Explanation) for job in jobs),
        *((gpu, GpuForm) for gpu in gpu_documents(objects, jobs, NOW_MS)),
        *((node, NodeDetail) for node in node_documents(objects, jobs, NOW_MS)),
        *((one, QuotaNodeForm) for one in quota_documents(objects.queues)),
    ]
    for document, form in documents:
        fields = {field.name: field.type for field in msgspec.structs.fields(form)}
        for name, value in document.items():
            msgspec.convert(value, fields[name])
        if form is not JobForm:  # a pod has no command that a job would have
            msgspec.convert(document, form)
