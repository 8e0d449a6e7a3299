"""`--kube`: commands that show a Kubernetes fleet instead of a server, and `kubectl gpu`.

`FleetClient` answers the requests of the commands as a server would, so that they print the same.
"""

from __future__ import annotations

import asyncio
import sys
import time
from urllib.parse import parse_qsl, unquote

from gpu_scheduler import __version__
from gpu_scheduler.client.client import Client
from gpu_scheduler.client.requests import API
from gpu_scheduler.model.errors import InvalidRequest, WrongState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from gpu_scheduler.kubernetes.fleet.jobs import FleetJob
    from gpu_scheduler.kubernetes.scheduler.objects_view import Objects

KUBECTL_COMMANDS = ("list", "explain", "gpus", "nodes", "quota", "top")
"""Commands with `--kube`."""
HELP = """\
Show GPUs, and why pods wait for them, as gpu-scheduler knows it.

usage: kubectl gpu <command> [options]

"""
_ALIASES = {"ls": "list", "get": "list"}


def kubectl_main() -> int:
    """`kubectl gpu COMMAND ...` is `tgpu COMMAND --kube ...`."""
    from gpu_scheduler.cli.main import COMMANDS, main

    arguments = sys.argv[1:]
    if arguments[:1] == ["--version"]:
        print(f"kubectl gpu {__version__}")
        return 0
    name = _ALIASES.get(arguments[0], arguments[0]) if arguments else "help"
    if name in ("help", "-h", "--help"):
        width = max(map(len, KUBECTL_COMMANDS))
        lines = (f"  {each:<{width}}  {COMMANDS[each].help}\n" for each in KUBECTL_COMMANDS)
        print(f"{HELP}commands:\n{''.join(lines)}", end="")
        return 0 if arguments else 2
    if name not in KUBECTL_COMMANDS:
        print(
            f"kubectl gpu: unknown command '{name}'; use one of {', '.join(KUBECTL_COMMANDS)}",
            file=sys.stderr,
        )
        return 2
    return main([name, "--kube", *arguments[1:]])


def fleet_client(args: Namespace) -> FleetClient:
    """A client for the cluster of the options."""
    if getattr(args, "server", None):
        raise InvalidRequest("--server is for a server of gpu-scheduler; leave it out with --kube")
    everywhere = getattr(args, "everybody", False) or getattr(args, "all_namespaces", False)
    if everywhere and args.namespace:
        raise InvalidRequest("-A is for all namespaces, and --namespace for one; leave out one")
    return FleetClient(
        kubeconfig=args.kubeconfig or "",
        context=args.context or "",
        namespace=args.namespace or "",
        everywhere=everywhere,
    )


class FleetClient(Client):
    """Answers GET requests of the REST API from the objects of a cluster; changes nothing."""

    def __init__(self, *, kubeconfig: str, context: str, namespace: str, everywhere: bool) -> None:
        """Find the cluster as kubectl does; it is read at the first request."""
        try:
            from gpu_scheduler.kubernetes.client.configuration import load_configuration
            from gpu_scheduler.kubernetes.client.errors import InvalidConfiguration
            from gpu_scheduler.kubernetes.client.http import connect
        except ModuleNotFoundError as error:
            raise InvalidRequest(
                f"--kube needs the package {error.name}; "
                "write pip install 'gpu-scheduler[kubernetes]'"
            ) from error
        try:
            configuration = load_configuration(kubeconfig=kubeconfig, context=context)
        except InvalidConfiguration as error:
            raise InvalidRequest(str(error)) from error
        self._server = configuration.server
        self._namespace = namespace or configuration.namespace
        self._everywhere = everywhere
        self._read: dict[tuple[str, ...], Objects] = {}
        self._runner = asyncio.Runner()

        async def open_client() -> Any:
            return connect(configuration)

        self._api = self._runner.run(open_client())

    def close(self) -> None:
        """Close the connections."""
        self._runner.run(self._api.close())
        self._runner.close()

    def job_references(self, words: list[str]) -> list[str]:
        """The ids of the jobs that the words name: pods, claims or ids."""
        from gpu_scheduler.kubernetes.fleet.jobs import find_job

        found: dict[str, None] = {}
        for word in words:
            where, slash, _ = word.partition("/")
            namespace = where if slash else self._namespace
            found[find_job(self._jobs(namespace), word, self._namespace).id] = None
        return list(found)

    def call(self, method: str, path: str, body: object = None, *, once: bool = True) -> Any:
        """The document of a request; raises for one that only a server answers."""
        del body, once
        route, _, text = path.removeprefix(API).partition("?")
        query = dict(parse_qsl(text))
        answers: dict[str, Callable[[Mapping[str, str]], Any]] = {
            "/jobs": self._job_page,
            "/gpus": self._gpus,
            "/nodes": self._nodes,
            "/quota/tree": self._quota,
            "/overview": self._overview,
        }
        if method == "GET" and route in answers:
            return answers[route](query)
        folder, _, name = route.lstrip("/").partition("/")
        if method == "GET" and folder == "nodes" and "/" not in name:
            from gpu_scheduler.kubernetes.fleet.devices import find_node

            return find_node(self._nodes({})["nodes"], unquote(name))
        raise _only_shown()

    def get(self, job: str | int) -> Any:
        """A job by its id."""
        from gpu_scheduler.kubernetes.fleet.jobs import job_document

        return job_document(self._job(str(job)))

    def explain(self, job: str | int) -> dict[str, Any]:
        """Why a job waits, by its id."""
        from gpu_scheduler.kubernetes.fleet.jobs import explanation

        return explanation(self._job(str(job)))

    def log_bytes(self, *_: object, **__: object) -> Iterator[bytes]:
        """Output of pods is read by kubectl."""
        raise _only_shown()

    # --- documents

    def _job_page(self, query: Mapping[str, str]) -> dict[str, Any]:
        from gpu_scheduler.cli.text.values import comma_list
        from gpu_scheduler.kubernetes.fleet.jobs import job_document, sorted_jobs

        states = comma_list(query.get("state", ""))
        chosen = [
            job
            for job in self._jobs("" if self._everywhere else self._namespace)
            if (not states or job.state in states)
            and query.get("tenant_id") in (None, job.queue)
            and query.get("name") in (None, job.name)
        ]
        ordered = sorted_jobs(chosen, query.get("sort", "number"))
        first = int(query.get("cursor", "0"))
        end = first + int(query.get("limit", "100"))
        return {
            "jobs": [job_document(job) for job in ordered[first:end]],
            "total": len(ordered),
            "next_cursor": str(end) if end < len(ordered) else None,
        }

    def _job(self, name: str) -> FleetJob:
        from gpu_scheduler.kubernetes.fleet.jobs import find_job

        namespace = name.partition("/")[0]
        return find_job(self._jobs(namespace), name, namespace)

    def _gpus(self, _: Mapping[str, str]) -> dict[str, Any]:
        from gpu_scheduler.kubernetes.fleet.devices import gpu_documents

        return {"gpus": gpu_documents(self._everything(), self._jobs(""), _now_ms())}

    def _nodes(self, _: Mapping[str, str]) -> dict[str, Any]:
        from gpu_scheduler.kubernetes.fleet.devices import node_documents

        return {"nodes": node_documents(self._everything(), self._jobs(""), _now_ms())}

    def _quota(self, _: Mapping[str, str]) -> dict[str, Any]:
        from gpu_scheduler.kubernetes.fleet.jobs import quota_documents

        return {"nodes": quota_documents(self._objects(("queues",), "").queues)}

    def _overview(self, query: Mapping[str, str]) -> dict[str, Any]:
        from gpu_scheduler.kubernetes.fleet.devices import node_documents
        from gpu_scheduler.kubernetes.fleet.jobs import job_window
        from gpu_scheduler.wire.times import write_time

        self._read.clear()  # a live screen shows what is there now
        nodes = node_documents(self._everything(), self._jobs(""), _now_ms())
        shown = [
            job for job in self._jobs("") if self._everywhere or job.namespace == self._namespace
        ]
        mine = query.get("user") == "@me"
        return {
            "version": __version__,
            "now": write_time(_now_ms()),
            "nodes": len(nodes),
            "online_nodes": sum(not node["silent_since"] for node in nodes),
            "problem": "",
            "gpus": self._gpus({})["gpus"],
            **job_window(shown, {**query, "user": self._namespace} if mine else query),
        }

    # --- reading

    def _jobs(self, namespace: str) -> list[FleetJob]:
        """The jobs of a namespace, or of all; with what has been read for the whole cluster."""
        from gpu_scheduler.kubernetes.fleet.jobs import fleet_jobs
        from gpu_scheduler.kubernetes.fleet.reading import EVERYTHING, JOBS

        if EVERYTHING in self._read:
            jobs = fleet_jobs(self._read[EVERYTHING])
            return [job for job in jobs if namespace in ("", job.namespace)]
        return fleet_jobs(self._objects(JOBS, namespace))

    def _everything(self) -> Objects:
        from gpu_scheduler.kubernetes.fleet.reading import EVERYTHING

        return self._objects(EVERYTHING, "")

    def _objects(self, fields: tuple[str, ...], namespace: str) -> Objects:
        from gpu_scheduler.kubernetes.fleet.reading import read_objects

        key = fields if not namespace else (*fields, f"in {namespace}")
        if key not in self._read:
            self._read[key] = self._runner.run(
                read_objects(self._api, fields, server=self._server, namespace=namespace)
            )
        return self._read[key]


def _only_shown() -> WrongState:
    return WrongState(
        "with --kube, jobs and nodes are only shown; use kubectl to change them, for example "
        "'kubectl delete pod', 'kubectl cordon' or 'kubectl logs'"
    )


def _now_ms() -> int:
    return int(time.time() * 1000)
