"""Compile the programs of a Kubernetes version from the Go module proxy, once for each version.

A version comes in; programs go out under `<root>/<version>/bin`, where the root is
`$TGPU_KUBERNETES_LAB`, or `gpu-scheduler/kubernetes` in the user's cache directory. Beside each
program stands a note of what it was built from, so that a change of the recipe builds it again.
A lock lets one build run at a time; a killed build leaves nothing that looks like a program.
"""

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

KUBERNETES = "1.35.8"
"""The version that the tests use unless $TGPU_KUBERNETES_VERSION names another."""
ETCD = "3.6.8"
KWOK = "0.8.0"
HELM = "3.22.0"
CONTAINERD = "2.2.9"

ROOT_VARIABLE = "TGPU_KUBERNETES_LAB"
VERSION_VARIABLE = "TGPU_KUBERNETES_VERSION"

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
"""What the contract tests use."""
NODE = ("kubelet", "containerd", "ctr", "containerd-shim-runc-v2")
"""What runs containers."""
EVERYTHING = (*CONTROL_PLANE, "kwok", "kube-scheduler", "helm", *NODE)

STAGING = (
    "api",
    "apiextensions-apiserver",
    "apimachinery",
    "apiserver",
    "cli-runtime",
    "client-go",
    "cloud-provider",
    "cluster-bootstrap",
    "code-generator",
    "component-base",
    "component-helpers",
    "controller-manager",
    "cri-api",
    "cri-client",
    "csi-translation-lib",
    "dynamic-resource-allocation",
    "endpointslice",
    "externaljwt",
    "kms",
    "kube-aggregator",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "metrics",
    "mount-utils",
    "pod-security-admission",
    "sample-apiserver",
    "sample-cli-plugin",
    "sample-controller",
)
"""Modules that k8s.io/kubernetes expects in its own tree; the proxy has them as modules."""
STAGING_FROM_1_36 = ("cri-streaming", "streaming")

STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
"""What kwok lets nodes and pods do; its module carries them as files."""


class CannotBuild(Exception):
    """Go is missing, or the Go build failed; the text says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """The programs of one Kubernetes version."""

    version: str
    directory: Path

    def program(self, name: str) -> Path:
        return self.directory / "bin" / name

    @property
    def kwok_stages(self) -> Path:
        return self.directory / "kwok-stages.yaml"

    def missing(self, names: Iterable[str]) -> list[str]:
        """Which of them are not built, or from another recipe."""
        return [name for name in names if not self._is_current(name)]

    def _is_current(self, name: str) -> bool:
        note = self._note(name)
        return (
            self.program(name).exists()
            and note.exists()
            and note.read_text(encoding="utf-8") == _recipe(name, self.version).text()
        )

    def _note(self, name: str) -> Path:
        return self.directory / "bin" / f".{name}.json"

    def build(
        self, names: Iterable[str], *, jobs: int = 0, report: Callable[[str], None] = print
    ) -> None:
        """Build what is missing; `jobs` limits how many cores Go uses (0: all of them)."""
        go = find_go()
        with _locked(self.directory, report):
            wanted = self.missing(names)
            for place, name in enumerate(wanted, 1):
                began = time.monotonic()
                report(f"[{place}/{len(wanted)}] building {name} (Kubernetes {self.version})")
                recipe = _recipe(name, self.version)
                made = self._compile(go, recipe, jobs)
                if name == "kwok":
                    self._copy_stages(go)
                self._note(name).unlink(missing_ok=True)
                made.replace(self.program(name))
                self._note(name).write_text(recipe.text(), encoding="utf-8")
                size_mb = self.program(name).stat().st_size / 1e6
                report(f"      {size_mb:.0f} MB in {time.monotonic() - began:.0f} s")

    def _compile(self, go: str, recipe: "Recipe", jobs: int) -> Path:
        module = self.directory / "modules" / recipe.module_name
        module.mkdir(parents=True, exist_ok=True)
        (module / "go.mod").write_text(recipe.go_mod, encoding="utf-8")
        made = self.directory / "bin" / f".{recipe.name}.new"
        made.parent.mkdir(exist_ok=True)
        _run_go(
            *(go, "build", "-mod=mod", "-trimpath", *([f"-p={jobs}"] if jobs else [])),
            *("-tags", recipe.tags, "-ldflags", recipe.link_flags, "-o", str(made)),
            recipe.package,
            cwd=module,
            jobs=jobs,
        )
        return made

    def _copy_stages(self, go: str) -> None:
        kwok = f"sigs.k8s.io/kwok@v{KWOK}"
        module = self.directory / "modules" / "kwok"
        facts = json.loads(_run_go(go, "mod", "download", "-json", kwok, cwd=module))
        stages = Path(facts["Dir"]) / "kustomize" / "stage"
        files = [
            path
            for stage in STAGES
            for path in sorted((stages / stage).glob("*.yaml"))
            if path.name != "kustomization.yaml"
        ]
        text = "\n---\n".join(path.read_text(encoding="utf-8") for path in files)
        self.kwok_stages.write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How one program is built."""

    name: str
    module_name: str
    go_mod: str
    package: str
    link_flags: str = "-s -w"
    tags: str = ""

    def text(self) -> str:
        parts = [self.go_mod, self.package, self.link_flags]
        return json.dumps([*parts, self.tags] if self.tags else parts)


def lab(version: str = "") -> Lab:
    """The lab of a version of Kubernetes, built or not."""
    version = version or os.environ.get(VERSION_VARIABLE) or KUBERNETES
    return Lab(version=version, directory=root() / version)


def root() -> Path:
    """Where the programs of all versions are kept."""
    given = os.environ.get(ROOT_VARIABLE)
    if given:
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "gpu-scheduler" / "kubernetes"


def find_go() -> str:
    go = shutil.which("go")
    if go is None:
        raise CannotBuild("Go is not installed: there is no program 'go' on the PATH")
    return go


def _recipe(name: str, version: str) -> Recipe:
    match name:
        case "etcd":
            package = "go.etcd.io/etcd/server/v3"
            return _recipe_of_module(name, package, f"v{ETCD}", package)
        case "kwok":
            return _recipe_of_module(name, "sigs.k8s.io/kwok", f"v{KWOK}", "cmd/kwok")
        case "helm":
            return _recipe_of_module(name, "helm.sh/helm/v3", f"v{HELM}", "cmd/helm")
        case "containerd" | "ctr" | "containerd-shim-runc-v2":
            return _recipe_of_containerd(name)
        case _:
            return _recipe_of_kubernetes(name, version)


def _recipe_of_module(name: str, module: str, version: str, package: str) -> Recipe:
    return Recipe(
        name=name,
        module_name=name,
        go_mod=f"module lab\n\ngo 1.25.0\n\nrequire {module} {version}\n",
        package=package if package.startswith(module) else f"{module}/{package}",
    )


def _recipe_of_containerd(name: str) -> Recipe:
    module = "github.com/containerd/containerd/v2"
    made = _recipe_of_module("containerd", module, f"v{CONTAINERD}", f"cmd/{name}")
    return replace(
        made,
        name=name,
        link_flags=f"{made.link_flags} -X {module}/version.Version=v{CONTAINERD}",
        tags="no_btrfs no_devmapper no_zfs",
    )


def _recipe_of_kubernetes(name: str, version: str) -> Recipe:
    major, minor, patch = version.split(".")
    staging = [*STAGING, *(STAGING_FROM_1_36 if int(minor) >= 36 else ())]
    replaces = "".join(f"\tk8s.io/{m} => k8s.io/{m} v0.{minor}.{patch}\n" for m in staging)
    stamps = {
        "k8s.io/component-base/version.gitVersion": f"v{version}",
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "k8s.io/client-go/pkg/version.gitVersion": f"v{version}",
    }
    return Recipe(
        name=name,
        module_name="kubernetes",
        go_mod=(
            "module lab\n\ngo 1.25.0\n\ngodebug default=go1.25\n\n"
            f"require k8s.io/kubernetes v{version}\n\nreplace (\n{replaces})\n"
        ),
        package=f"k8s.io/kubernetes/cmd/{name}",
        link_flags=" ".join(["-s -w", *(f"-X {key}={value}" for key, value in stamps.items())]),
    )


def _run_go(*command: str, cwd: Path, jobs: int = 0) -> str:
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
    if jobs:
        environment["GOMAXPROCS"] = str(jobs)
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CannotBuild(f"{' '.join(command[:2])} failed:\n{done.stderr[-4000:]}")
    return done.stdout


@contextmanager
def _locked(directory: Path, report: Callable[[str], None]) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"another build holds {lock.name}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
