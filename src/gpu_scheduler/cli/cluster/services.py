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
from functools import partial
from itertools import takewhile
from typing import Any

from gpu_scheduler.cli.connection import add_server_options, client_for, print_answer
from gpu_scheduler.cli.jobs.columns import local_time
from gpu_scheduler.cli.jobs.follow import Attempts, StatusLine
from gpu_scheduler.cli.parser import Options, Parser
from gpu_scheduler.cli.submit.body import (
    PLAIN_FIELDS,
    check_gpus,
    fields_of,
    pairs_of,
    priority_of,
    variables_of,
)
from gpu_scheduler.cli.submit.files import read_job_file
from gpu_scheduler.cli.text.tables import (
    coloured_state,
    counted,
    in_local_time,
    print_json,
    print_pairs,
    print_table,
)
from gpu_scheduler.cli.text.values import (
    comma_list,
    duration,
    number,
    positive,
    seconds,
    size_mb,
    whole,
)
from gpu_scheduler.client.captured_environment import directory, umask
from gpu_scheduler.client.client import Client
from gpu_scheduler.client.errors import TimedOut
from gpu_scheduler.client.http1 import quoted
from gpu_scheduler.client.requests import API
from gpu_scheduler.model.errors import ClusterError, InvalidInput, InvalidRequest, UnknownThing
from gpu_scheduler.wire.services import ReadinessRequest, RestartRequest, ServiceRequest

ACTIONS = ("list", "create", "show", "scale", "update", "delete", "endpoints", "logs")
_MEANT = {
    **dict.fromkeys(("remove", "rm", "stop", "kill", "cancel"), "delete"),
    **dict.fromkeys(("run", "start", "add", "deploy"), "create"),
    **dict.fromkeys(("ls", "ps"), "list"),
    **dict.fromkeys(("status", "describe"), "show"),
}
"""Words that people try, and the action to suggest instead."""
HEADINGS = ("NAME", "ID", "STATE", "READY", "RESTARTS", "GPUS", "PORT", "USER")
REPLICA_HEADINGS = ("REPLICA", "JOBID", "STATE", "READY", "ENDPOINT", "RESTARTS", "NOTE")
PATH = f"{API}/services"
PASSED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_EXE")
POLL_S = 0.3
FIELDS_BY_OPTION = {
    option: PLAIN_FIELDS.get(option, option)
    for option in (
        *("replicas", "gpus", "gpu_memory", "mig", "cpus", "memory", "tenant", "surge"),
        *("preemptible", "requeue_on_node_loss", "conda", "image", "mount", "grace", "notify"),
    )
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
    add = Options(parser)
    add.value("-f --file", None, "FILE", "a service file (YAML), for create and update")
    add.value("-r --replicas", whole, "N", "number of replicas; default 1")
    add.flag("--wait", "wait until it is ready, or deleted")
    add.flag("--follow", "logs: follow the output, also after restarts; also -f")
    add.value("--replica", whole, "N", "logs: only this replica")
    add.value("-n --tail", whole, "N", "logs: only the last N lines")
    add.value("--timeout", duration, "TIME", "timeout of --wait; default 10m", default=600.0)

    add = Options(parser.add_argument_group("resources per replica"))
    add.value("-G --gpus", number, "N", "GPUs, such as 1 or 0.5")
    add.value("--gpu-memory", size_mb, "SIZE", "of all its GPUs")
    add.value("--gpu-model", None, "NAME", "allowed models, such as A100 or A100,H100")
    add.value("--mig", None, "PROFILE", "a MIG slice, such as 3g.40gb")
    add.value("-c --cpus", number, "N", "CPU cores")
    add.value("-m --memory", size_mb, "SIZE", "host memory")
    add.value("--label", None, "NAME=VALUE", "only nodes with this label", action="append")
    add.value("-p --priority", None, "P", "priority, as for submit")
    add.value("-T --tenant", None, "T", "tenant, by id or name")
    add.value("-D --chdir", None, "DIR", "working directory; default: the current one")
    add.value("-e --env", None, "NAME=VALUE", "set a variable", action="append")
    add.value("--conda", None, "ENV", "run in this conda environment")
    add.value("--image", None, "IMAGE", "run in this container image")
    mount = "mount a directory into the container"
    add.value("--mount", None, "SRC:DST[:ro]", mount, action="append")
    add.value("--grace", seconds, "TIME", "time between TERM and KILL")
    events = "as for jobs, such as fail:slack"
    add.value("--notify", None, "WHAT[:WHO]", events, action="append")

    add = Options(parser.add_argument_group("port and readiness check"))
    add.value("--port", None, "N", "fixed port; default: a free one")
    add.value("--http", None, "PATH", "ready when GET PATH returns 200 to 399")
    add.flag("--tcp", "ready when its port accepts connections", default=None)
    add.value("--check", None, "LINE", "ready when this shell command exits with 0")
    add.value("--check-interval", seconds, "TIME", "default 5 s")
    add.value("--check-timeout", seconds, "TIME", "default 2 s")
    failures = "failures in a row after which it is not ready; default 3"
    add.value("--check-failures", positive, "N", failures)
    grace = "time to become ready after the start; default 60 s"
    add.value("--start-grace", seconds, "TIME", grace)

    add = Options(parser.add_argument_group("restarts and updates"))
    add.choice("--restart", ("always", "on-failure", "never"), "default: always")
    first = "delay before the first restart, doubled each time; default 1 s"
    add.value("--backoff", seconds, "TIME", first)
    add.value("--max-backoff", seconds, "TIME", "longest delay; default 5 min")
    reset = "run time after which the delay is reset; default 1 min"
    add.value("--reset-after", seconds, "TIME", reset)
    add.flag("--surge", "update: start a new replica before stopping the old one", default=None)
    add.flag("--preemptible", "may be preempted", default=None)
    lost = "restart on another node when its node is lost and its lease has expired"
    add.flag("--requeue-on-node-loss", lost, default=None)
    add_server_options(parser, table=True)


def run(args: Namespace) -> int:
    """Run the action that the first word names."""
    args, words, command = _parse_words(args)
    action = words[0] if words else "list"
    if action not in ACTIONS:
        from difflib import get_close_matches

        near = [_MEANT[action]] if action in _MEANT else get_close_matches(action, ACTIONS, n=1)
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
        if action == "scale":
            return _scale(client, args, words)
        if len(words) > 2:
            raise InvalidRequest(f"'{words[2]}' is unexpected; {action} one service at a time")
        actions = {"endpoints": _endpoints, "logs": _show_logs, "delete": _delete, "show": _show}
        return actions[action](client, args, words[1])


def _parse_words(args: Namespace) -> tuple[Namespace, list[str], list[str]]:
    """The options and words before `--`, and the command after it."""
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
    plain = list(takewhile(lambda word: not word.startswith("-"), own))
    own = own[len(plain) :]
    if plain[:1] == ["logs"]:
        # As for `tgpu logs`; for other actions -f is a file.
        own = ["--follow" if word == "-f" else word for word in own]
    found = parser.read(own, into=args)
    return found, [*plain, *found.plain], command


def _path(name: str) -> str:
    return f"{PATH}/{quoted(name)}"


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
        made = client.call("POST", PATH, body)
    else:
        made = client.call("PUT", _path(body["name"]), body)
    if args.wait:
        made = _wait(client, made["id"], args.timeout)
    text = f"service {made['name']} ({made['id']}) {action}d: {_summary(made)}"
    return print_answer(args, made, text)


def _scale(client: Client, args: Namespace, words: list[str]) -> int:
    wanted = words[2] if len(words) > 2 else args.replicas
    if wanted is None:
        raise InvalidRequest(f"number of replicas missing; write 'tgpu service scale {words[1]} 3'")
    replicas = whole("replicas")(str(wanted))
    made = client.call("POST", f"{_path(words[1])}/scale", {"replicas": replicas})
    if args.wait:
        made = _wait(client, made["id"], args.timeout)
    text = f"service {made['name']} scaled to {made['replicas']} replicas: {_summary(made)}"
    return print_answer(args, made, text)


def _delete(client: Client, args: Namespace, name: str) -> int:
    deleted = client.call("DELETE", _path(name))
    give_up = time.monotonic() + args.timeout
    while args.wait and any(
        service["id"] == deleted["id"] for service in client.call("GET", PATH)["services"]
    ):
        if time.monotonic() > give_up:
            raise TimedOut(f"service {deleted['id']} is not deleted yet")
        time.sleep(POLL_S)
    rest = len(deleted["members"])
    being = f"{counted(rest, 'replica')} {'is' if rest == 1 else 'are'} being stopped"
    note = f"; {being}" if rest and not args.wait else ""
    return print_answer(args, deleted, f"service {name} deleted{note}")


def _list(client: Client, args: Namespace) -> int:
    services = client.call("GET", PATH)["services"]
    rows = [
        [
            service["name"],
            service["id"],
            coloured_state(service["state"]),
            f"{service['ready']}/{service['replicas']}",
            str(service["restarts"]),
            f"{service['gpu_count']:g}",
            str(service["port"] or "auto"),
            service["user"],
        ]
        for service in services
    ]
    right, spare = ("RESTARTS", "GPUS", "PORT"), ("USER", "ID", "PORT", "GPUS")
    return print_answer(
        args,
        {"services": services},
        partial(print_table, HEADINGS, rows, right=right, spare=spare)
        if services
        else "no services; 'tgpu service create --help' shows how to create one",
    )


def _show(client: Client, args: Namespace, name: str) -> int:
    service = client.call("GET", _path(name))
    if args.json:
        print_json(service)
        return 0
    check, restart = service["readiness"], service["restart"]
    check_text = "none"
    if check is not None:
        probe = {"http": f"GET {check['path']}", "tcp": "a connection"}.get(check["kind"])
        check_text = (
            f"{probe or ' '.join(check['command'])}, every {check['interval_seconds']:g} s, at "
            f"most {check['timeout_seconds']:g} s, {check['failures']} failures, "
            f"{check['grace_seconds']:g} s to become ready"
        )
    restart_text = restart["policy"]
    if restart_text != "never":
        first, most = restart["backoff_seconds"], restart["max_backoff_seconds"]
        restart_text += f", after {first:g} s, doubled each time up to {most:g} s"
    gpus = f"{service['gpu_count']:g} GPU{'s' * (service['gpu_count'] != 1)}"
    print_pairs(
        [
            ("service", f"{service['name']} ({service['id']})"),
            ("state", f"{coloured_state(service['state'])}, {_summary(service)}"),
            ("owner", f"{service['user']} (tenant {service['tenant_id']})"),
            ("runs", " ".join(service["command"]) or service["image"]),
            ("needs", f"{gpus} each, priority {service['priority']}"),
            ("port", str(service["port"] or "a free one")),
            ("check", check_text),
            ("restart", restart_text),
            ("since", local_time(service["made_at"])),
            *([("problem", service["problem"])] if service["problem"] else []),
        ]
    )
    if service["members"]:
        print()
        rows = [_replica_row(replica) for replica in service["members"]]
        print_table(REPLICA_HEADINGS, rows, right=("REPLICA", "RESTARTS"))
    return 0


def _endpoints(client: Client, args: Namespace, name: str) -> int:
    found = client.call("GET", f"{_path(name)}/endpoints")
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


def _body(args: Namespace, command: list[str]) -> dict[str, Any]:
    """The complete service; options override the file."""
    body = read_service_file(args.file) if args.file else {}
    body |= fields_of(args, FIELDS_BY_OPTION)
    if args.gpu_model:
        body["gpu_models"] = comma_list(args.gpu_model)
        check_gpus(body, args)
    if args.label:
        body["node_labels"] = pairs_of("--label", args.label)
    if args.priority is not None:
        body["priority"] = priority_of(args.priority)
    if args.port is not None:
        body["port"] = 0 if args.port == "auto" else whole("--port", least=1)(args.port)
    check = fields_of(args, READINESS_BY_OPTION)
    if args.check is not None:
        check["command"] = [*_SHELL, args.check]
    if check:
        kinds = {"http", "tcp", "command"}
        replaced = kinds if kinds & check.keys() else set()
        before = body.get("readiness") or {}
        kept = {name: value for name, value in before.items() if name not in replaced}
        body["readiness"] = kept | check
    rule = fields_of(args, RESTART_BY_OPTION)
    if rule:
        before = body.get("restart", {})
        body["restart"] = ({"policy": before} if isinstance(before, str) else before) | rule
    if command:
        body["command"] = command
        body.pop("args", None)
    _add_environment(body, args)
    return body


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
_SHELL = ["/bin/sh", "-c"]


def read_service_file(file: str) -> dict[str, Any]:
    """The service in a file, as the body of a request."""
    found = read_job_file(file, FIELDS)
    if len(found) != 1:
        raise InvalidInput(f"has {len(found)} services; write one per file", file=file)
    body = found[0]
    try:
        if body.get("port") == "auto":
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


def _show_logs(client: Client, args: Namespace, name: str) -> int:
    """Show the output of one replica or of all; with `--follow` also after restarts."""
    service = client.call("GET", _path(name))
    replicas = _chosen(service, args.replica)
    if args.follow:
        if len(replicas) > 1:
            numbers = ", ".join(str(one["replica"]) for one in replicas)
            raise InvalidRequest(
                f"service '{service['name']}' has replicas {numbers}; choose one with --replica"
            )
        # Copy this attempt of the replica and all later ones, until the replica has ended.
        job = replicas[0]["job_id"]
        status = StatusLine(quiet=False, hint="Ctrl-C stops following")
        first = int(client.get(job).get("attempt") or 1)
        Attempts(client, job, status, first=first, query={"tail": args.tail}).copy_until_end()
        return 0
    sys.stdout.flush()
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


def _copy(pieces: Any, mark: bytes) -> None:
    """Copy to stdout, with a mark before each line."""
    out = sys.stdout.buffer
    fresh = True
    for piece in pieces:
        for line in piece.splitlines(keepends=True) if mark else (piece,):
            out.write((mark if fresh else b"") + line)
            fresh = line.endswith(b"\n")
    if mark and not fresh:
        out.write(b"\n")
    out.flush()
