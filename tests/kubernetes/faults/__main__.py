"""Show one simulated Kubernetes, or run many of them.

python -m tests.kubernetes.faults 47                  the world of one seed, and what was wrong
python -m tests.kubernetes.faults 47 --trace          the faults that happened in it
python -m tests.kubernetes.faults 0-1999 --jobs 2     many worlds, on two cores
python -m tests.kubernetes.faults 47 --variant NAME   with a scheduler that is broken on purpose
"""

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial

from tests.kubernetes.faults.variants import VARIANTS
from tests.kubernetes.faults.world import WorldResult, run_world


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.kubernetes.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("seeds", help="one seed, or a range such as 0-199")
    parser.add_argument("--trace", action="store_true", help="print the faults")
    parser.add_argument("--jobs", type=int, default=1, help="worlds at the same time")
    parser.add_argument("--variant", choices=sorted(VARIANTS), help="a scheduler broken on purpose")
    chosen = parser.parse_args()
    first, _, last = chosen.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    run = partial(one, variant=chosen.variant, keeps_trace=chosen.trace)
    began, counts, virtual_s, failed = time.monotonic(), Counter[str](), 0.0, 0
    # Dead processes leave coroutines behind; collecting them is no finding.
    sys.unraisablehook = lambda _: None
    with ProcessPoolExecutor(chosen.jobs) as pool:
        for result in pool.map(run, seeds):
            counts += result.counts
            virtual_s += result.virtual_s
            failed += bool(result.problems)
            for line in (*result.trace, *(f"seed {result.seed}: {p}" for p in result.problems)):
                print(line, flush=True)
    bound = counts.pop("bound", 0)
    print(
        f"{len(seeds)} worlds in {time.monotonic() - began:.0f} s: {virtual_s / 3600:.1f} virtual "
        f"hours, {counts.total()} faults, {bound} pods bound, {failed} worlds failed"
    )
    return 1 if failed else 0


def one(seed: int, *, variant: str | None, keeps_trace: bool) -> WorldResult:
    sys.unraisablehook = lambda _: None
    with VARIANTS[variant]() if variant else nullcontext():
        return run_world(seed, keeps_trace=keeps_trace)


if __name__ == "__main__":
    sys.exit(main())
