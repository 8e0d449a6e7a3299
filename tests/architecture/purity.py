"""Forbidden operations of the core, found in its syntax tree.

Source text in, findings out. The core (model, engine, ledger) has no clock, no randomness, no id
making, no logging, no I/O and no async; and it never depends on the order of a set.
"""

import ast
import sys
from collections.abc import Iterator

CORE = ("model", "engine", "ledger")

# By reason, so that a finding can say what is wrong.
FORBIDDEN_MODULES: dict[str, str] = {
    module: reason
    for reason, modules in {
        "a clock; time comes in as `now`": "time datetime calendar zoneinfo sched timeit",
        "chance; it comes in as a seeded source": "random secrets",
        "id making; ids come in from outside": "uuid",
        "logging; return a reason or raise an error": "logging warnings syslog",
        "concurrency; the core is called, it never waits": (
            "asyncio threading multiprocessing concurrent queue subprocess signal select selectors"
        ),
        "I/O; somebody else reads and writes": (
            "os io pathlib socket socketserver ssl http urllib ftplib smtplib shutil tempfile glob"
            " fileinput mmap fcntl pwd grp getpass platform locale sqlite3 dbm shelve pickle"
            " configparser ctypes pty resource"
        ),
        "loading code by name; imports stand at the top": "importlib runpy pkgutil",
    }.items()
    for module in modules.split()
}

ALLOWED_PACKAGES = frozenset({"sortedcontainers"})
FORBIDDEN_PARTS = frozenset({"gpu_scheduler.settings"})
FORBIDDEN_CALLS = frozenset(
    {"open", "print", "input", "breakpoint", "eval", "exec", "compile", "__import__"}
)
SET_MAKERS = frozenset({"set", "frozenset"})
ORDER_KEEPERS = frozenset(
    {"list", "tuple", "iter", "enumerate", "map", "filter", "zip", "reversed"}
)


def findings(source: str) -> list[str]:
    """Every violation in the source, as ``line N: what``, in the order of lines."""
    found = sorted(
        (node.lineno, text) for node in ast.walk(ast.parse(source)) for text in _breaches(node)
    )
    return [f"line {line}: {text}" for line, text in found]


def _breaches(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            for name in names:
                yield from _import_breaches(name.name)
        case ast.ImportFrom(module=str(module), names=names, level=0):
            yield from _import_breaches(module)
            yield from (
                f"imports {module}.{name.name}; the core is given a policy, not settings"
                for name in names
                if f"{module}.{name.name}" in FORBIDDEN_PARTS
            )
        case ast.AsyncFunctionDef() | ast.AsyncFor() | ast.AsyncWith() | ast.Await():
            yield "is async"
        case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
            yield f"calls {name}()"
    if any(map(_is_set, _read_in_order(node))):
        yield "depends on the order of a set; use sorted()"


def _read_in_order(node: ast.AST) -> list[ast.expr]:
    """The expressions over whose elements the node iterates."""
    match node:
        case ast.For(iter=source):
            return [source]
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return [generator.iter for generator in node.generators]
        case ast.Starred(value=value):
            return [value]
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in ORDER_KEEPERS:
            return arguments
    return []


def _import_breaches(module: str) -> Iterator[str]:
    top = module.partition(".")[0]
    if module in FORBIDDEN_PARTS:
        yield f"imports {module}; the core is given a policy, not settings"
    elif top in FORBIDDEN_MODULES:
        yield f"imports {module}: {FORBIDDEN_MODULES[top]}"
    elif top not in {"gpu_scheduler", *sys.stdlib_module_names, *ALLOWED_PACKAGES}:
        yield f"imports {module}: third-party code stays out of the core"


def _is_set(node: ast.expr) -> bool:
    """Whether an expression is syntactically a set; variables are not followed."""
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name in SET_MAKERS
        case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub(), right=right):
            return _is_set(left) or _is_set(right)
        case ast.IfExp(body=body, orelse=orelse):
            return _is_set(body) or _is_set(orelse)
    return False
