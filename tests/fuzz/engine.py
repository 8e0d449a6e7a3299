"""The process of one fuzzed target: `python -m tests.fuzz.engine TARGET MODULES`, then options.

MODULES (separated by commas) are imported with instrumentation, so that the fuzzer sees which of
their branches an input takes.
"""

import sys

import atheris

with atheris.instrument_imports(include=sys.argv.pop(2).split(",")):
    from tests.fuzz.targets import TARGETS, quiet


def main() -> None:
    quiet()
    run = TARGETS[sys.argv.pop(1)].run
    atheris.Setup(sys.argv, run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
