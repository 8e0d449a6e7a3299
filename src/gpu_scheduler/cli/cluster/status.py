"""`tgpu status` and `tgpu health`: queue, GPUs, jobs and health at a glance."""

from __future__ import annotations

import sys
import textwrap
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpu_scheduler.cli.cluster import gpus as gpu_table
from gpu_scheduler.cli.connection import add_server_options, client_for, print_answer
from gpu_scheduler.cli.jobs.columns import HEADINGS, NARROW, RIGHT, SPARE_OF_ALL, row
from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.text.tables import (
    STATE_COLOURS,
    aligned,
    coloured_state,
    counted,
    cut,
    is_terminal,
    painted,
    print_json,
    print_pairs,
    terminal_width,
    visible,
)
from gpu_scheduler.cli.text.values import duration_text, seconds
from gpu_scheduler.client.errors import NoServer, Unreadable

if TYPE_CHECKING:
    from gpu_scheduler.client.client import Client

EXIT_UNHEALTHY = 1


def register_health(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--strict", action="store_true", help="exit code 1 also if it is degraded")
    add_server_options(parser)


def run_health(args: Namespace) -> int:
    """Print the health; exit code 1 if unhealthy, with --strict also if degraded."""
    with client_for(args) as client:
        answer = client.health()
    if args.json:
        print_json(answer)
    else:
        print(coloured_state(str(answer.get("status"))))
        print_pairs(
            [
                ("version", str(answer.get("version") or "")),
                ("up for", duration_text(float(answer.get("uptime_seconds") or 0))),
                *((name, check_text(value)) for name, value in checks_of(answer)),
            ]
        )
        for line in (*leadership_lines(answer), *reason_lines(answer)):
            print(line)
    bad = ("unhealthy", "degraded") if args.strict else ("unhealthy",)
    return EXIT_UNHEALTHY if answer.get("status") in bad else 0


def reason_lines(answer: dict[str, Any]) -> Iterator[str]:
    """The problems, each with what to do."""
    for reason in answer.get("reasons") or []:
        yield f"{coloured_state(str(reason['status']))}: {visible(str(reason['detail']))}"
        yield f"  what to do: {visible(str(reason['remedy']))}"


def leadership_lines(answer: dict[str, Any]) -> Iterator[str]:
    """The leader and the standbys, if there are several servers."""
    found = answer.get("leadership")
    if not found:
        return
    leader = found["leader"] or "none"
    place = f" at {found['leader_address']}" if found["leader_address"] else ""
    standbys = ", ".join(one["name"] for one in found["standbys"]) or "none"
    answered_by = (
        "" if found["role"] == "leader" else f" (answered by {found['name']}, {found['role']})"
    )
    yield visible(
        f"leader: {leader}{place}, term {found['term']}; standby: {standbys}{answered_by}"
    )


def checks_of(answer: dict[str, Any]) -> list[tuple[str, Any]]:
    """The checks by name."""
    checks = answer.get("checks")
    return sorted(checks.items()) if isinstance(checks, dict) else []


def check_text(value: Any) -> str:
    """One check as text."""
    if isinstance(value, dict):
        state = str(value.get("status", ""))
        detail = str(value.get("detail") or value.get("message") or "")
        return f"{state}: {detail}" if detail else state
    return str(value)


BAR = 20
SHORT_BAR = 8
NARROW_SCREEN = 60
FEW = 10
MANY = 200
_CLEAR = "\x1b[H\x1b[J"
_ALTERNATE, _ORDINARY = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def register_status(parser: ArgumentParser) -> None:
    """Add the options."""
    add = Options(parser)
    add.flag("-w --watch", "refresh until Ctrl-C")
    often = "how often to refresh with --watch; default 2 s"
    add.value("-i --interval", seconds, "TIME", often, default=2.0)
    add.flag("-d --detailed", "all GPU figures, more jobs, the checks")
    add_server_options(parser)


def run_status(args: Namespace) -> int:
    """Print the status, once or repeatedly."""
    with client_for(args) as client:
        if args.watch:
            return _watch(client, args)
        overview = fetch(client, detailed=args.detailed)
    return print_answer(
        args, overview, lambda: print("\n".join(lines(overview, detailed=args.detailed)))
    )


def fetch(client: Client, *, detailed: bool = False) -> dict[str, Any]:
    """Everything that is shown, in one document."""
    jobs = MANY if detailed else FEW
    running = client.page(state="running,scheduled", sort="number", limit=jobs)
    waiting = client.page(state="pending,preempted", sort="number", limit=jobs)
    return {
        "health": client.health(),
        "cluster": client.status(detailed=detailed),
        "resources": list(client.gpus()),
        "running": running["jobs"],
        "pending": waiting["jobs"],
        "running_total": running.get("total", len(running["jobs"])),
        "pending_total": waiting.get("total", len(waiting["jobs"])),
    }


def lines(overview: dict[str, Any], *, detailed: bool) -> Iterator[str]:
    """The lines of the whole screen."""
    health, cluster = overview["health"], overview["cluster"]
    up = duration_text(float(health.get("uptime_seconds") or 0))
    long = "for " if _width() >= NARROW_SCREEN else ""
    yield (
        f"{painted('gpu-scheduler', 'bold')} {health.get('version', '')}  "
        f"{coloured_state(str(health.get('status')))}, up {long}{up}"
    )
    queue = _queue_lines(cluster) if detailed else ()
    for line in (_summary(cluster), *_pool_lines(cluster), *queue):
        yield from textwrap.wrap(line, _width(), break_on_hyphens=False)
    yield from leadership_lines(health)
    yield from reason_lines(health)
    yield ""
    yield from _gpu_lines(overview["resources"], detailed=detailed)
    for title, key in (("Running", "running"), ("Pending", "pending")):
        jobs, total = overview[key], overview[f"{key}_total"]
        if jobs:
            yield ""
            yield painted(f"{title} jobs: {total:,}", "bold")
            now = time.time()
            rows = [row(job, now) for job in jobs]
            yield from aligned(
                HEADINGS,
                rows,
                right=frozenset(RIGHT),
                width=_width(),
                narrow=NARROW,
                spare=SPARE_OF_ALL,
            )
            if total > len(jobs):
                yield f"... and {total - len(jobs):,} more"
    if detailed and checks_of(health):
        yield ""
        yield painted("Checks", "bold")
        for name, value in checks_of(health):
            yield f"  {name}: {check_text(value)}"


def _summary(cluster: dict[str, Any]) -> str:
    waiting = cluster.get("pending_jobs") or 0
    # Scheduled jobs already hold their GPUs.
    running = cluster["running_jobs"] + (cluster.get("scheduled_jobs") or 0)
    tasks = cluster.get("queued_tasks") or 0
    of_arrays = f" ({tasks:,} including array tasks)" if tasks > waiting else ""
    return (
        f"{cluster.get('online_nodes')} of {counted(cluster['total_nodes'], 'node')} online, "
        f"{cluster.get('available_gpus')} of {counted(cluster['total_gpus'], 'GPU')} free, "
        f"{counted(running, 'job')} running, {waiting:,} pending{of_arrays}"
    )


def _pool_lines(cluster: dict[str, Any]) -> Iterator[str]:
    """The share of each pool, if the GPUs are divided into pools."""
    pools = [pool for pool in cluster.get("pools") or () if pool["percent"] is not None]
    for pool in pools:
        part = cluster["total_gpus"] * pool["percent"] / 100
        text = (
            f"{pool['pool']} pool: uses {pool['held_gpus']:g} GPUs, guaranteed "
            f"{pool['sure_of_gpus']:g}"
        )
        if pool["sure_of_gpus"] < part:
            text += f" instead of {part:g} ({pool['percent']} %), because GPUs are out of service"
        else:
            text += f" ({pool['percent']} %)"
        if pool["borrowed_gpus"]:
            text += f", {pool['borrowed_gpus']:g} of them borrowed"
        if pool["waiting_jobs"]:
            text += f"; {pool['waiting_jobs']:,} of its jobs are pending"
        yield text


def _queue_lines(cluster: dict[str, Any]) -> Iterator[str]:
    """How jobs ended, and the pending jobs by priority."""
    ended = {
        name: cluster.get(f"{name}_jobs") or 0 for name in ("completed", "failed", "cancelled")
    }
    outcomes = ", ".join(f"{count:,} {name}" for name, count in ended.items() if count)
    yield f"{counted(sum(ended.values()), 'job')} processed" + (f": {outcomes}" if outcomes else "")
    waiting = cluster.get("pending_by_priority")
    if waiting is not None:
        levels = ", ".join(f"{waiting[name]:,} {name}" for name in ("high", "normal", "low"))
        yield f"{counted(sum(waiting.values()), 'job')} in the queue: {levels} priority"


def _gpu_lines(gpus: list[dict[str, Any]], *, detailed: bool) -> Iterator[str]:
    if not gpus:
        yield "no GPUs"
        return
    named = len({gpu.get("node") for gpu in gpus}) > 1
    if detailed:
        rows = [gpu_table.row(gpu, named=named) for gpu in gpus]
        yield from aligned(
            gpu_table.HEADINGS,
            rows,
            right=frozenset(gpu_table.RIGHT),
            width=_width(),
            narrow=gpu_table.NARROW,
            spare=gpu_table.SPARE,
        )
        return
    yield from (_gpu_line(gpu, named=named) for gpu in gpus)


def _gpu_line(gpu: dict[str, Any], *, named: bool) -> str:
    """A bar, and the jobs as far as there is room."""
    size = BAR if _width() >= NARROW_SCREEN else SHORT_BAR
    share = float(gpu.get("allocated_share") or 0)
    filled = round(size * min(1.0, share))
    bar = painted("█" * filled, "cyan") + painted("░" * (size - filled), "dim")
    place = f"{gpu.get('node')}:{gpu.get('index')}" if named else f"GPU {gpu.get('index')}"
    state = str(gpu.get("state") or "")
    note = "" if state in ("free", "used", "shared") else state.upper()
    heat = gpu.get("temperature_c")
    warm = f"{heat:.0f} C" if heat else ""
    before = f"  {place:<8} "
    behind = f" {round(100 * share):>3}%" + (f"  {warm}" if warm else "")
    flag = f"  {painted(note, STATE_COLOURS.get(state))}" if note else ""
    room = _width() - len(before) - size - len(behind) - (len(note) + 2 if note else 0) - 2
    jobs = cut(", ".join(map(str, gpu.get("jobs") or [])), room) if room > 1 else ""
    return f"{before}{bar}{behind}{flag}  {jobs}".rstrip()


def _watch(client: Client, args: Namespace) -> int:
    """Redraw until Ctrl-C; in a pipe print one overview after the other."""
    on_screen = is_terminal() and not args.json
    if on_screen:
        print(_ALTERNATE, end="")
    try:
        while True:
            try:
                overview = fetch(client, detailed=args.detailed)
            except (NoServer, Unreadable) as error:
                if client.connection.address is None:
                    raise
                print(f"{_CLEAR if on_screen else ''}{error}")
            else:
                if args.json:
                    print_json(overview)
                else:
                    text = "\n".join(lines(overview, detailed=args.detailed))
                    print(f"{_CLEAR}{text}" if on_screen else f"{text}\n")
            sys.stdout.flush()
            time.sleep(args.interval)
    except KeyboardInterrupt:
        return 0
    finally:
        if on_screen:
            print(_ORDINARY, end="", flush=True)


def _width() -> int:
    return terminal_width() or 200
