"""The process of one fuzzed target: `python -m tests.fuzz.engine TARGET MODULES FOUND`, options.

MODULES (separated by commas) are imported with instrumentation, so that the fuzzer sees which of
their branches an input takes. FOUND is the directory for inputs that fail.
"""

import sys
from functools import partial
from pathlib import Path

import atheris

with atheris.instrument_imports(include=sys.argv.pop(2).split(",")):
    from tests.fuzz.targets import quiet, run_recorded


def main() -> None:
    quiet()
    name, found = sys.argv.pop(1), Path(sys.argv.pop(1))
    atheris.Setup(sys.argv, partial(run_recorded, name, found=found))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
