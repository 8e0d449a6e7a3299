"""Show one world, or run many of them on all cores.

python -m tests.faults 4711              the world of one seed, and what went wrong in it
python -m tests.faults 4711 --trace      all that happened in it
python -m tests.faults 0-19999 --jobs 2  many worlds; every one that fails says how to replay it
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.faults.variants import VARIANTS, one
from tests.faults.world import Verdict

SHOWN = 10
EVERY_S = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("seeds", help="one seed, or a range such as 0-199")
    parser.add_argument("--trace", action="store_true", help="print all that happened")
    parser.add_argument("--jobs", type=int, default=1, help="worlds at the same time")
    parser.add_argument("--climate", default="", help="only these kinds of faults, with commas")
    parser.add_argument("--variant", choices=sorted(VARIANTS), help="a scheduler broken on purpose")
    chosen = parser.parse_args()
    first, _, last = chosen.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    climate = tuple(filter(None, chosen.climate.split(",")))
    run = partial(one, climate=climate, trace=chosen.trace, variant=chosen.variant)
    if len(seeds) == 1:
        return show(run(seeds[0]))
    if chosen.jobs == 1:
        return count(map(run, seeds), len(seeds))
    with ProcessPoolExecutor(chosen.jobs) as pool:
        return count(pool.map(run, seeds, chunksize=20), len(seeds))


def show(verdict: Verdict) -> int:
    for line in verdict.trace or ():
        print(line)
    print(
        f"seed {verdict.seed}: {'FAILED' if verdict.problems else 'ok'}, "
        f"{verdict.virtual_s:.0f} virtual seconds, {verdict.calls} calls, "
        f"fingerprint {verdict.fingerprint}"
    )
    for problem in verdict.problems:
        print(f"  {problem}")
    return 1 if verdict.problems else 0


def count(verdicts: Iterable[Verdict], total: int) -> int:
    began = told = time.monotonic()
    done = faults = processes = 0
    virtual_s = 0.0
    failed: list[Verdict] = []
    for verdict in verdicts:
        done += 1
        virtual_s += verdict.virtual_s
        faults += verdict.counts.get("fault", 0)
        processes += verdict.counts.get("began", 0)
        if verdict.problems:
            failed.append(verdict)
            print(f"seed {verdict.seed} FAILED: {verdict.problems[0]}")
            print(f"  replay: {verdict.replay} --trace", flush=True)
        if time.monotonic() - told > EVERY_S:
            told = time.monotonic()
            print(f"{done} of {total} worlds, {len(failed)} failed", flush=True)
    hours = virtual_s / 3600
    print(
        f"{done} worlds in {time.monotonic() - began:.0f} s: {hours:.0f} virtual hours, "
        f"{faults} faults, {processes} processes, {len(failed)} failed"
    )
    if failed:
        numbers = ", ".join(str(verdict.seed) for verdict in failed[:SHOWN])
        print(f"failed: {numbers}{' and more' if len(failed) > SHOWN else ''}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
