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
from tests.faults.world import WorldResult

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
    parser.add_argument("--fault-kinds", default="", help="only these kinds of faults, with commas")
    parser.add_argument("--variant", choices=sorted(VARIANTS), help="a scheduler broken on purpose")
    chosen = parser.parse_args()
    first, _, last = chosen.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    fault_kinds = tuple(filter(None, chosen.fault_kinds.split(",")))
    run = partial(one, fault_kinds=fault_kinds, trace=chosen.trace, variant=chosen.variant)
    if len(seeds) == 1:
        return show(run(seeds[0]))
    if chosen.jobs == 1:
        return count(map(run, seeds), len(seeds))
    with ProcessPoolExecutor(chosen.jobs) as pool:
        return count(pool.map(run, seeds, chunksize=20), len(seeds))


def show(result: WorldResult) -> int:
    for line in result.trace or ():
        print(line)
    print(
        f"seed {result.seed}: {'FAILED' if result.problems else 'ok'}, "
        f"{result.virtual_s:.0f} virtual seconds, {result.calls} calls, "
        f"fingerprint {result.fingerprint}"
    )
    for problem in result.problems:
        print(f"  {problem}")
    return 1 if result.problems else 0


def count(results: Iterable[WorldResult], total: int) -> int:
    began = told = time.monotonic()
    done = faults = processes = 0
    virtual_s = 0.0
    failed: list[WorldResult] = []
    for result in results:
        done += 1
        virtual_s += result.virtual_s
        faults += result.counts.get("fault", 0)
        processes += result.counts.get("began", 0)
        if result.problems:
            failed.append(result)
            print(f"seed {result.seed} FAILED: {result.problems[0]}")
            print(f"  replay: {result.replay} --trace", flush=True)
        if time.monotonic() - told > EVERY_S:
            told = time.monotonic()
            print(f"{done} of {total} worlds, {len(failed)} failed", flush=True)
    hours = virtual_s / 3600
    print(
        f"{done} worlds in {time.monotonic() - began:.0f} s: {hours:.0f} virtual hours, "
        f"{faults} faults, {processes} processes, {len(failed)} failed"
    )
    if failed:
        numbers = ", ".join(str(result.seed) for result in failed[:SHOWN])
        print(f"failed: {numbers}{' and more' if len(failed) > SHOWN else ''}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
