"""`tgpu service`: online services with replicas, ports, readiness checks and restarts.

A service comes from options or from a service file (YAML or JSON). A service file has the keys of
the REST API and the short ones of job files; readiness and restart have short keys of their own,
and durations with units.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import Any

from gpu_scheduler.cli.connection import add_server_options, client_for
from gpu_scheduler.cli.jobs.columns import local_time
from gpu_scheduler.cli.jobs.follow import Attempts, StatusLine
from gpu_scheduler.cli.submit.body import check_gpus, pairs_of, priority_of, variables_of
from gpu_scheduler.cli.submit.files import read_job_file
from gpu_scheduler.cli.text.tables import (
    coloured_state,
    counted,
    in_local_time,
    print_json,
    print_pairs,
    print_table,
)
from gpu_scheduler.cli.text.values import duration, number, size_mb, whole
from gpu_scheduler.client.client import Client
from gpu_scheduler.client.environment import directory, umask
from gpu_scheduler.client.errors import TimedOut
from gpu_scheduler.client.http1 import quoted
from gpu_scheduler.client.requests import API
from gpu_scheduler.model.errors import ClusterError, InvalidInput, InvalidRequest, UnknownThing
from gpu_scheduler.wire.services import ReadinessRequest, RestartRequest, ServiceRequest

ACTIONS = ("list", "create", "show", "scale", "update", "delete", "endpoints", "logs")
HEADINGS = ("NAME", "ID", "STATE", "READY", "RESTARTS", "GPUS", "PORT", "USER")
REPLICA_HEADINGS = ("REPLICA", "JOBID", "STATE", "READY", "ENDPOINT", "RESTARTS", "NOTE")
PATH = f"{API}/services"
PASSED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_EXE")
POLL_S = 0.3
FIELDS_BY_OPTION = {
    "replicas": "replicas",
    "gpus": "gpu_count",
    "gpu_memory": "gpu_memory_mb",
    "mig": "mig_profile",
    "cpus": "cpu_cores",
    "memory": "memory_mb",
    "tenant": "tenant_id",
    "surge": "surge",
    "preemptible": "preemptible",
    "requeue_on_node_loss": "requeue_on_node_loss",
    "conda": "conda",
    "image": "image",
    "mount": "mounts",
    "grace": "grace_seconds",
    "notify": "notify",
}
READINESS_BY_OPTION = {
    "http": "http",
    "tcp": "tcp",
    "check_interval": "interval_seconds",
    "check_timeout": "timeout_seconds",
    "check_failures": "failures",
    "start_grace": "grace_seconds",
}
RESTART_BY_OPTION = {
    "restart": "policy",
    "backoff": "backoff_seconds",
    "max_backoff": "max_backoff_seconds",
    "reset_after": "reset_after_seconds",
}
EXAMPLES = """\
examples:
  tgpu service create web --replicas 2 --gpus 1 --http /health -- python serve.py
  tgpu service create -f llama.yaml --wait
  tgpu service scale web 4
  tgpu service update web --gpus 1 --http /health -- python serve.py --fast
  tgpu service endpoints web
  tgpu service logs web -f --replica 0

A replica has its port in the variable PORT; with --port N every replica has port N, each on its own
node. 'update' takes a complete service, like 'create', and replaces one replica after the other."""


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.usage = (
        "%(prog)s [list] | create NAME [options] -- COMMAND | create -f FILE | show NAME | "
        "scale NAME N | update NAME [options] -- COMMAND | endpoints NAME | "
        "logs NAME [-f] [--replica N] | delete NAME"
    )
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("-f", "--file", metavar="FILE", help="a service file (YAML), for create and update")
    add(
        "-r",
        "--replicas",
        type=whole("--replicas"),
        metavar="N",
        help="number of replicas; default 1",
    )
    add("--wait", action="store_true", help="wait until it is ready, or deleted")
    add(
        "--follow",
        action="store_true",
        help="logs: follow the output, also after restarts; also -f",
    )
    add("--replica", type=whole("--replica"), metavar="N", help="logs: only this replica")
    add("-n", "--tail", type=whole("--tail"), metavar="N", help="logs: only the last N lines")
    add(
        "--timeout",
        type=duration("--timeout"),
        default=600.0,
        metavar="TIME",
        help="timeout of --wait; default 10m",
    )
    _add_needs(parser)
    _add_port_and_check(parser)
    _add_restart(parser)
    add_server_options(parser)


def _add_needs(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("resources per replica").add_argument
    add("-G", "--gpus", type=number("--gpus"), metavar="N", help="GPUs, such as 1 or 0.5")
    add("--gpu-memory", type=size_mb("--gpu-memory"), metavar="SIZE", help="of all its GPUs")
    add("--gpu-model", metavar="NAME", help="allowed models, such as A100 or A100,H100")
    add("--mig", metavar="PROFILE", help="a MIG slice, such as 3g.40gb")
    add("-c", "--cpus", type=number("--cpus"), metavar="N", help="CPU cores")
    add("-m", "--memory", type=size_mb("--memory"), metavar="SIZE", help="host memory")
    add("--label", action="append", metavar="NAME=VALUE", help="only nodes with this label")
    add("-p", "--priority", metavar="P", help="priority, as for submit")
    add("-T", "--tenant", metavar="T", help="tenant, by id or name")
    add("-D", "--chdir", metavar="DIR", help="working directory; default: the current one")
    add("-e", "--env", action="append", metavar="NAME=VALUE", help="set a variable")
    add("--conda", metavar="ENV", help="run in this conda environment")
    add("--image", metavar="IMAGE", help="run in this container image")
    add(
        "--mount",
        action="append",
        metavar="SRC:DST[:ro]",
        help="mount a directory into the container",
    )
    add(
        "--grace",
        type=duration("--grace", plain="s"),
        metavar="TIME",
        help="time between TERM and KILL",
    )
    add("--notify", action="append", metavar="WHAT[:WHO]", help="as for jobs, such as fail:slack")


def _add_port_and_check(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("port and readiness check").add_argument
    add("--port", metavar="N", help="fixed port; default: a free one")
    add("--http", metavar="PATH", help="ready when GET PATH returns 200 to 399")
    add("--tcp", action="store_true", default=None, help="ready when its port accepts connections")
    add("--check", metavar="LINE", help="ready when this shell command exits with 0")
    seconds: dict[str, Any] = {"metavar": "TIME"}
    add(
        "--check-interval",
        type=duration("--check-interval", plain="s"),
        **seconds,
        help="default 5 s",
    )
    add(
        "--check-timeout",
        type=duration("--check-timeout", plain="s"),
        **seconds,
        help="default 2 s",
    )
    add(
        "--check-failures",
        type=whole("--check-failures", least=1),
        metavar="N",
        help="failures in a row after which it is not ready; default 3",
    )
    add(
        "--start-grace",
        type=duration("--start-grace", plain="s"),
        **seconds,
        help="time to become ready after the start; default 60 s",
    )


def _add_restart(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("restarts and updates").add_argument
    add("--restart", choices=("always", "on-failure", "never"), help="default: always")
    for name, about in (
        ("--backoff", "delay before the first restart, doubled each time; default 1 s"),
        ("--max-backoff", "longest delay; default 5 min"),
        ("--reset-after", "run time after which the delay is reset; default 1 min"),
    ):
        add(name, type=duration(name, plain="s"), metavar="TIME", help=about)
    add(
        "--surge",
        action="store_true",
        default=None,
        help="update: start a new replica before stopping the old one",
    )
    add("--preemptible", action="store_true", default=None, help="may be preempted")
    add(
        "--requeue-on-node-loss",
        action="store_true",
        default=None,
        help="restart on another node when its node is lost and its lease has expired",
    )


def run(args: Namespace) -> int:
    """Run the action that the first word names."""
    args, words, command = _parse_words(args)
    action = words[0] if words else "list"
    if action not in ACTIONS:
        from difflib import get_close_matches

        near = get_close_matches(action, ACTIONS, n=1)
        advice = f"did you mean '{near[0]}'?" if near else f"write one of {', '.join(ACTIONS)}"
        raise InvalidRequest(f"'{action}' is not an action; {advice}")
    if command and action not in ("create", "update"):
        raise InvalidRequest(f"'{action}' takes no command; leave '{' '.join(command)[:60]}' out")
    with client_for(args) as client:
        if action == "list":
            return _list(client, args)
        if action in ("create", "update"):
            return _create(client, args, words, command)
        if len(words) < 2:
            raise InvalidRequest(f"NAME is missing; write 'tgpu service {action} NAME'")
        return _run_on_service(client, args, words)


def _run_on_service(client: Client, args: Namespace, words: list[str]) -> int:
    """Run an action on an existing service."""
    action, name = words[:2]
    path = f"{PATH}/{quoted(name)}"
    if action == "scale":
        return _scale(client, args, words, path)
    if len(words) > 2:
        raise InvalidRequest(f"'{words[2]}' is unexpected; {action} one service at a time")
    if action == "endpoints":
        return _endpoints(client, args, path)
    if action == "logs":
        return _show_logs(client, args, path)
    if action == "delete":
        return _delete(client, args, name, path)
    return _show(client, args, path)


def _parse_words(args: Namespace) -> tuple[Namespace, list[str], list[str]]:
    """The options and words before `--`, and the command after it."""
    from gpu_scheduler.cli.parser import Parser

    words = list(args.words)
    if args.after_dashes and "--" not in words:
        raise InvalidRequest(
            "no action given; write for example 'tgpu service create web -- python x.py'"
        )
    place = words.index("--") if "--" in words else len(words)
    own, command = words[:place], words[place + 1 :]
    parser = Parser(prog="tgpu service")
    parser.add_argument("plain", nargs="*")
    register(parser)
    plain: list[str] = []
    while own and not own[0].startswith("-"):
        plain.append(own.pop(0))
    if plain[:1] == ["logs"]:
        # As for `tgpu logs`; for other actions -f is a file.
        own = ["--follow" if word == "-f" else word for word in own]
    found = parser.read(own, into=args)
    return found, [*plain, *found.plain], command


def _create(client: Client, args: Namespace, words: list[str], command: list[str]) -> int:
    action = words[0]
    body = _body(args, command)
    if len(words) > 2:
        raise InvalidRequest(
            f"'{words[2]}' is unexpected; write the command after '--', as in "
            f"'tgpu service {action} {words[1]} -- {' '.join(words[2:])}'"
        )
    if len(words) > 1:
        body["name"] = words[1]
    if not body.get("name"):
        raise InvalidRequest(f"NAME is missing; write 'tgpu service {action} NAME -- COMMAND'")
    if action == "create":
        made = client.call("POST", PATH, body, once=True)
    else:
        made = client.call("PUT", f"{PATH}/{quoted(body['name'])}", body, once=True)
    if args.wait:
        made = _wait(client, made["id"], args.timeout)
    if args.json:
        print_json(made)
    else:
        done = "created" if action == "create" else "updated"
        print(f"service {made['name']} ({made['id']}) {done}: {_summary(made)}")
    return 0


def _scale(client: Client, args: Namespace, words: list[str], path: str) -> int:
    wanted = words[2] if len(words) > 2 else args.replicas
    if wanted is None:
        raise InvalidRequest(f"number of replicas missing; write 'tgpu service scale {words[1]} 3'")
    made = client.call(
        "POST", f"{path}/scale", {"replicas": whole("replicas")(str(wanted))}, once=True
    )
    if args.wait:
        made = _wait(client, made["id"], args.timeout)
    if args.json:
        print_json(made)
    else:
        print(f"service {made['name']} scaled to {made['replicas']} replicas: {_summary(made)}")
    return 0


def _delete(client: Client, args: Namespace, name: str, path: str) -> int:
    deleted = client.call("DELETE", path)
    if args.wait:
        _wait_gone(client, deleted["id"], args.timeout)
    if args.json:
        print_json(deleted)
    else:
        rest = len(deleted["members"])
        being = f"{counted(rest, 'replica')} {'is' if rest == 1 else 'are'} being stopped"
        note = f"; {being}" if rest and not args.wait else ""
        print(f"service {name} deleted{note}")
    return 0


def _list(client: Client, args: Namespace) -> int:
    services = client.call("GET", PATH)["services"]
    if args.json:
        print_json({"services": services})
    elif services:
        right, spare = ("RESTARTS", "GPUS", "PORT"), ("USER", "ID", "PORT", "GPUS")
        print_table(HEADINGS, map(_row, services), right=right, spare=spare)
    else:
        print("no services; 'tgpu service create --help' shows how to create one")
    return 0


def _show(client: Client, args: Namespace, path: str) -> int:
    service = client.call("GET", path)
    if args.json:
        print_json(service)
        return 0
    readiness, restart = service["readiness"], service["restart"]
    gpus = f"{service['gpu_count']:g} GPU{'s' * (service['gpu_count'] != 1)}"
    print_pairs(
        [
            ("service", f"{service['name']} ({service['id']})"),
            ("state", f"{coloured_state(service['state'])}, {_summary(service)}"),
            ("owner", f"{service['user']} (tenant {service['tenant_id']})"),
            ("runs", " ".join(service["command"]) or service["image"]),
            ("needs", f"{gpus} each, priority {service['priority']}"),
            ("port", str(service["port"] or "a free one")),
            ("check", "none" if readiness is None else _check_text(readiness)),
            ("restart", _restart_text(restart)),
            ("since", local_time(service["made_at"])),
            *([("problem", service["problem"])] if service["problem"] else []),
        ]
    )
    if service["members"]:
        print()
        rows = [_replica_row(replica) for replica in service["members"]]
        print_table(REPLICA_HEADINGS, rows, right=("REPLICA", "RESTARTS"))
    return 0


def _endpoints(client: Client, args: Namespace, path: str) -> int:
    found = client.call("GET", f"{path}/endpoints")
    if args.json:
        print_json(found)
        return 0
    for endpoint in found["endpoints"]:
        print(address_text(endpoint["host"], endpoint["port"]))
    return 0 if found["endpoints"] else 1


def _wait(client: Client, service_id: str, timeout_s: float) -> dict[str, Any]:
    """Wait until the service is ready or stopped; raises if its replicas have ended for good."""
    give_up = time.monotonic() + timeout_s
    while True:
        service: dict[str, Any] = client.call("GET", f"{PATH}/{service_id}")
        if service["state"] in ("ready", "stopped"):
            return service
        if service["state"] == "ended":
            raise ClusterError(f"the replicas of '{service['name']}' have ended; see their logs")
        if time.monotonic() > give_up:
            raise TimedOut(f"service '{service['name']}' is not ready: {_summary(service)}")
        time.sleep(POLL_S)


def _wait_gone(client: Client, service_id: str, timeout_s: float) -> None:
    give_up = time.monotonic() + timeout_s
    while any(s["id"] == service_id for s in client.call("GET", PATH)["services"]):
        if time.monotonic() > give_up:
            raise TimedOut(f"service {service_id} is not deleted yet")
        time.sleep(POLL_S)


def _body(args: Namespace, command: list[str]) -> dict[str, Any]:
    """The complete service; options override the file."""
    body: dict[str, Any] = {}
    if args.file:
        body = read_service_file(args.file)
    body |= {
        field: getattr(args, option)
        for option, field in FIELDS_BY_OPTION.items()
        if getattr(args, option) is not None
    }
    if args.gpu_model:
        body["gpu_models"] = [name for name in args.gpu_model.split(",") if name]
        check_gpus(body, args)
    if args.label:
        body["node_labels"] = pairs_of("--label", args.label)
    if args.priority is not None:
        body["priority"] = priority_of(args.priority)
    if args.port is not None:
        body["port"] = 0 if args.port == "auto" else whole("--port", least=1)(args.port)
    _add_check(body, args)
    rule = {
        f: getattr(args, option)
        for option, f in RESTART_BY_OPTION.items()
        if getattr(args, option) is not None
    }
    if rule:
        before = body.get("restart", {})
        body["restart"] = ({"policy": before} if isinstance(before, str) else before) | rule
    if command:
        body["command"] = command
        body.pop("args", None)
    _add_environment(body, args)
    return body


def _add_check(body: dict[str, Any], args: Namespace) -> None:
    check: dict[str, Any] = {
        field: getattr(args, option)
        for option, field in READINESS_BY_OPTION.items()
        if getattr(args, option) is not None
    }
    if args.check is not None:
        check["command"] = ["/bin/sh", "-c", args.check]
    if check:
        kinds = ("http", "tcp", "command")
        before = dict(body.get("readiness") or {})
        if any(kind in check for kind in kinds):
            before = {name: value for name, value in before.items() if name not in kinds}
        body["readiness"] = before | check


def _add_environment(body: dict[str, Any], args: Namespace) -> None:
    """Add the directory, and the variables with which programs are found."""
    current = directory(os.environ)
    if args.chdir:
        body["working_directory"] = os.path.normpath(os.path.join(current, args.chdir))  # noqa: PTH118
    body.setdefault("working_directory", current)
    body.setdefault("umask", umask())
    if not body.get("image"):
        found = {name: os.environ[name] for name in PASSED_VARIABLES if os.environ.get(name)}
        body["environment"] = found | body.get("environment", {})
    if args.env:
        body["environment"] = {**body.get("environment", {}), **variables_of(args.env)}


def address_text(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _summary(service: dict[str, Any]) -> str:
    text = f"{service['ready']} of {service['replicas']} replicas ready"
    if service["state"] == "updating":
        text += f", {service['updated']} updated"
    if service["problem"]:
        text += f"; {service['problem']}"
    return text


def _check_text(check: dict[str, Any]) -> str:
    what = {"http": f"GET {check['path']}", "tcp": "a connection"}.get(check["kind"])
    return (
        f"{what or ' '.join(check['command'])}, every {check['interval_seconds']:g} s, at most "
        f"{check['timeout_seconds']:g} s, {check['failures']} failures, "
        f"{check['grace_seconds']:g} s to become ready"
    )


def _restart_text(rule: dict[str, Any]) -> str:
    if rule["policy"] == "never":
        return "never"
    first, most = rule["backoff_seconds"], rule["max_backoff_seconds"]
    return f"{rule['policy']}, after {first:g} s, doubled each time up to {most:g} s"


def _row(service: dict[str, Any]) -> list[str]:
    return [
        service["name"],
        service["id"],
        coloured_state(service["state"]),
        f"{service['ready']}/{service['replicas']}",
        str(service["restarts"]),
        f"{service['gpu_count']:g}",
        str(service["port"] or "auto"),
        service["user"],
    ]


def _replica_row(replica: dict[str, Any]) -> list[str]:
    is_there = replica["host"] and replica["port"]
    endpoint = address_text(replica["host"], replica["port"]) if is_there else "-"
    notes = [in_local_time(replica["detail"])]
    if replica["last_end"]:
        notes.append(f"last end: {replica['last_end']}")
    if not replica["is_current"]:
        notes.append("to be replaced")
    return [
        str(replica["replica"]),
        replica["job_id"].removeprefix("job-"),
        coloured_state(replica["state"]),
        "yes" if replica["ready"] else "no",
        endpoint,
        str(replica["restarts"]),
        "; ".join(note for note in notes if note),
    ]


# Service files

FIELDS = frozenset(ServiceRequest.__struct_fields__)
AUTO = "auto"
_SHELL = ["/bin/sh", "-c"]


def read_service_file(file: str) -> dict[str, Any]:
    """The service in a file, as the body of a request."""
    found = read_job_file(file, FIELDS)
    if len(found) != 1:
        raise InvalidInput(f"has {len(found)} services; write one per file", file=file)
    body = found[0]
    try:
        if body.get("port") == AUTO:
            body["port"] = 0
        if "readiness" in body:
            known = ReadinessRequest.__struct_fields__
            body["readiness"] = _part("readiness", body["readiness"], known)
        if isinstance(body.get("restart"), dict):
            known = RestartRequest.__struct_fields__
            body["restart"] = _part("restart", body["restart"], known)
    except InvalidRequest as error:
        raise InvalidInput(str(error), file=file) from None
    return body


def _part(name: str, value: Any, known: tuple[str, ...]) -> dict[str, Any]:
    """A nested mapping with the fields of the REST API: `interval: 5s` is interval_seconds: 5."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"'{name}' is written as 'name: value' lines")
    found: dict[str, Any] = {}
    for key, given in value.items():
        field = f"{key}_seconds" if f"{key}_seconds" in known else str(key)
        if field not in known:
            shown = ", ".join(field.removesuffix("_seconds") for field in known)
            raise InvalidRequest(f"unknown key '{key}' in {name}; known: {shown}")
        if field.endswith("_seconds") and isinstance(given, str):
            found[field] = duration(f"{name}.{key}", plain="s")(given)
        elif field == "command" and isinstance(given, str):
            found[field] = [*_SHELL, given]
        elif field == "command":
            found[field] = [str(word) for word in given]
        else:
            found[field] = given
    return found


# Logs


def _show_logs(client: Client, args: Namespace, path: str) -> int:
    """Show the output of one replica or of all; with `--follow` also after restarts."""
    service = client.call("GET", path)
    replicas = _chosen(service, args.replica)
    if args.follow:
        if len(replicas) > 1:
            numbers = ", ".join(str(one["replica"]) for one in replicas)
            raise InvalidRequest(
                f"service '{service['name']}' has replicas {numbers}; choose one with --replica"
            )
        _follow(client, replicas[0]["job_id"], args.tail)
        return 0
    for replica in replicas:
        mark = f"[{replica['replica']}] ".encode() if len(replicas) > 1 else b""
        _copy(client.log_bytes(replica["job_id"], tail=args.tail), mark)
    return 0


def _chosen(service: dict[str, Any], number: int | None) -> list[dict[str, Any]]:
    """The chosen replicas; of two with one number, as in an update, the newer one."""
    by_number = {one["replica"]: one for one in service["members"]}
    if not by_number:
        raise UnknownThing(f"service '{service['name']}' has no replicas, so there is no output")
    if number is None:
        return [by_number[key] for key in sorted(by_number)]
    if number not in by_number:
        known = ", ".join(map(str, sorted(by_number)))
        raise UnknownThing(f"service '{service['name']}' has no replica {number}; it has {known}")
    return [by_number[number]]


def _follow(client: Client, job: str, tail: int | None) -> None:
    """Copy this attempt of the replica and all later ones, until the replica has ended."""
    status = StatusLine(quiet=False, hint="Ctrl-C stops following")
    first = int(client.get(job).get("attempt") or 1)
    Attempts(client, job, status, first=first, query={"tail": tail}).copy_until_end()


def _copy(pieces: Any, mark: bytes) -> None:
    """Copy to stdout, with a mark before each line."""
    out = sys.stdout.buffer
    sys.stdout.flush()
    fresh = True
    for piece in pieces:
        for line in piece.splitlines(keepends=True) if mark else (piece,):
            out.write((mark if fresh else b"") + line)
            fresh = line.endswith(b"\n")
    if mark and not fresh:
        out.write(b"\n")
    out.flush()
