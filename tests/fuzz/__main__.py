"""Coverage-guided fuzzing: `python -m tests.fuzz [--seconds N] [TARGET...]`; `make fuzz` runs it.

Each target runs in a process of its own, as the fuzzer ends its process. It begins with the kept
inputs of `tests/fuzz/corpus`, and keeps new ones in the user's cache for the next run. An input
that a parser cannot handle is written to `build/fuzz`; add it to the corpus with the fix. Some
targets keep a server, so that an error may need the inputs before it: `TARGET-sequence` has them
all, and `--replay FILE TARGET` tries them again. `--kept` only tries the kept inputs. Neither needs
the fuzzer.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOUND = ROOT / "build" / "fuzz"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-scheduler-fuzz"
MAX_BYTES = 4096
MEMORY_MB = 2048
HANG_S = 150


def main() -> int:
    from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(prog="tests.fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--no-cache", action="store_true", help="neither use nor keep new inputs")
    parser.add_argument("--kept", action="store_true", help="only try the kept inputs")
    parser.add_argument("--replay", metavar="FILE", help="try the inputs of TARGET-sequence")
    args = parser.parse_args()
    if unknown := set(args.targets) - TARGETS.keys():
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(TARGETS)}")
    if args.replay:
        lines = Path(args.replay).read_text().splitlines()
        return try_inputs(args.targets[0], [bytes.fromhex(line) for line in lines])
    if args.kept:
        for name in args.targets or TARGETS:
            try_inputs(name, (b"", *TARGETS[name].corpus()))
        return 0
    failed = 0
    for name in args.targets or TARGETS:
        code, summary = run(name, f"-max_total_time={args.seconds}", keep=not args.no_cache)
        print(f"{name:20} {'ok' if code == 0 else 'FAILED'}  {summary}", flush=True)
        failed += code != 0
    return 1 if failed else 0


def try_inputs(name: str, inputs: Sequence[bytes]) -> int:
    """Pass inputs to a target; an unexpected error ends this with a traceback."""
    from tests.fuzz.targets import TARGETS, quiet

    quiet()
    for data in inputs:
        try:
            TARGETS[name].run(data)
        except BaseException:
            print(f"{name} fails with {data!r}", flush=True)
            raise
    print(f"{name:20} ok  {len(inputs)} inputs", flush=True)
    return 0


def run(name: str, *options: str, keep: bool = False) -> tuple[int, str]:
    """Fuzz one target; returns the exit code, and the counts or the end of the output.

    `options` are those of libFuzzer which say how long. With a seed and a number of runs, the same
    code sees the same inputs.
    """
    from tests.fuzz.targets import TARGETS

    found = TARGETS[name]
    FOUND.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tgpu-fuzz-") as made:
        seeds, words = Path(made) / "seeds", Path(made) / "words"
        seeds.mkdir()
        for number, seed in enumerate(found.corpus()):
            (seeds / f"{number:05}").write_bytes(seed)
        words.write_text("\n".join(_quoted(word) for word in found.words) + "\n")
        new = CACHE / name if keep else Path(made) / "new"
        new.mkdir(parents=True, exist_ok=True)
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "tests.fuzz.engine", name, ",".join(found.modules)),
                *(str(FOUND), str(new), str(seeds)),
                *(*options, f"-max_len={MAX_BYTES}", f"-dict={words}"),
                *(f"-rss_limit_mb={MEMORY_MB}", f"-timeout={HANG_S}", "-print_final_stats=1"),
                f"-artifact_prefix={FOUND}/{name}-",
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    if ended.returncode == 0:
        return 0, _counts(ended.stdout)
    return ended.returncode, "\n" + ended.stdout[-6000:]


def _quoted(word: str) -> str:
    """A line of libFuzzer's dictionary."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in word.encode("latin-1")) + '"'


def _counts(output: str) -> str:
    """How many inputs were tried, and how far they came."""
    runs = [line.split()[-1] for line in output.splitlines() if "number_of_executed_units" in line]
    cover = [line for line in output.splitlines() if " cov: " in line]
    words = cover[-1].split() if cover else []
    reached = words[words.index("cov:") + 1] if words else "?"
    return f"{''.join(runs)} inputs, {reached} branches reached"


if __name__ == "__main__":
    os.nice(5)
    sys.exit(main())
