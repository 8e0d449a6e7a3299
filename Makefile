# Everything a developer runs. The environment in .venv is made from hashed pins, only when they change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Extra arguments and worker processes for pytest. Many tests wait for real processes, so there are
# more workers than cores; those of 'test-all' compute more.
PYTEST_ARGS ?=
PYTEST_WORKERS ?= 4
# One worker runs all tests of a file; files start in the order of collection (tests/conftest.py).
PYTEST_SHARED = -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder --durations=20

# The version of $(PYTHON), and the interpreter behind it also when $(VENV) itself is active.
PYTHON_FACTS := $(shell $(PYTHON) -c 'import sys; print("%d.%d %s" % (sys.version_info[:2] + (getattr(sys, "_base_executable", sys.executable),)))' 2>/dev/null)
PYTHON_TAG := $(word 1,$(PYTHON_FACTS))
BASE_PYTHON := $(wordlist 2,99,$(PYTHON_FACTS))

# One stamp for each step; another Python has other stamps, and so gets a new environment.
UV_READY := $(VENV)/.uv-$(PYTHON_TAG)
PINS_READY := $(VENV)/.pins-$(PYTHON_TAG)
READY := $(VENV)/.ready-$(PYTHON_TAG)

# Tests start thousands of Python processes; without cached byte code each would compile the package.
unexport PYTHONDONTWRITEBYTECODE

# uv trusts the certificates that the system trusts, as pip does: some labs have their own.
export UV_SYSTEM_CERTS ?= 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo test test-all soak attack fuzz pytest parts test-coverage test-kubernetes lint fmt bench build audit docker-build docker docker-webhook docker-agent proto crds manifests pins kubernetes-lab clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(READY) ## make the environment in .venv (every target that needs it does so)

demo: $(READY) ## real jobs of three tenants on declared GPUs, in less than a minute
	$(BIN)/tgpu demo

test: lint $(READY) parts ## lint, then every short test: within ten minutes on two cores
	TEST_EFFORT=short $(BIN)/python -m pytest $(PYTEST_SHARED) -m "not slow" $(PYTEST_ARGS)

test-all: lint pytest ## lint, then every test, also golden traces, fault injection and kills

soak: $(READY) parts ## without a time limit: faults, kills, a real fleet, attacks, fuzzing (docs/reference/soak.md)
	$(BIN)/python -m tests.faults 0-$$(($${CHAOS_WORLDS:-20000} - 1)) --jobs 2
	$(BIN)/python -m tests.kubernetes.faults 0-$$(($${KUBERNETES_WORLDS:-2000} - 1)) --jobs 2
	CHAOS_KILLS=$${CHAOS_KILLS:-500} FLEET_AGENTS=$${FLEET_AGENTS:-20} FLEET_FAULTS=$${FLEET_FAULTS:-100} \
		DASHBOARD_MINUTES=$${DASHBOARD_MINUTES:-10} \
		$(BIN)/python -m pytest -s tests/chaos tests/kubernetes/faults/test_live.py
	TGPU_COMPARED_CLUSTERS=$${COMPARED_CLUSTERS:-100} \
		$(BIN)/python -m pytest tests/kubernetes/test_filters_against_kube_scheduler.py
	$(MAKE) attack
	$(BIN)/python -m tests.fuzz --seconds $${FUZZ_SECONDS:-600}

# FUZZ_TARGETS="http_request job_file" runs some; CONTRIBUTING.md says what to do with a finding.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?=
fuzz: $(READY) ## coverage-guided fuzzing of every parser, FUZZ_SECONDS for each
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(FUZZ_TARGETS)

attack: $(READY) parts ## as root: every attack that docs/reference/security.md names; a table of what held
	@if [ "$$(id -u)" != 0 ]; then echo "make: 'attack' makes Linux users; run it as root" >&2; exit 1; fi
	$(BIN)/python -m pytest $(PYTEST_SHARED) -m attack $(PYTEST_ARGS)

pytest: $(READY) parts ## every test, without lint; PYTEST_ARGS="tests/unit -k gang" runs some
	$(BIN)/python -m pytest $(PYTEST_SHARED) $(PYTEST_ARGS)

test-kubernetes: $(READY) ## tests of the Kubernetes driver, on a real control plane if 'make kubernetes-lab' has built one
	$(BIN)/python -m pytest $(PYTEST_SHARED) tests/kubernetes tests/contract tests/unit/kubernetes -k kubernetes $(PYTEST_ARGS)

parts: ## the programs that some tests use (as root, by apt-get; PARTS=no does without)
	@sh requirements/parts.sh

test-coverage: $(READY) parts ## every test, with 90 % of all lines and 100 % of the model covered
	$(BIN)/python -m pytest $(PYTEST_SHARED) --cov $(PYTEST_ARGS)
	@if [ -d src/gpu_scheduler/model ]; then \
		$(BIN)/coverage report --include='src/gpu_scheduler/model/*' --fail-under=100; \
	fi

lint: $(READY) ## style, format, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo "$(BIN)/lint-imports & $(BIN)/mypy"; $(BIN)/lint-imports >$(VENV)/lint-imports.log 2>&1 & pid=$$!; \
	$(BIN)/mypy; types=$$?; wait $$pid; imports=$$?; tail -3 $(VENV)/lint-imports.log; \
	if [ $$imports != 0 ]; then cat $(VENV)/lint-imports.log; fi; exit $$((types | imports))

fmt: $(READY) ## format, and repair what can be repaired
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## every benchmark; each prints one line of JSON
	$(BIN)/python -m benchmarks

# The same commit gives the same bytes.
build: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
build: $(READY) ## source archive, wheel, bill of materials (SBOM) and checksums into dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	version=$$($(BIN)/hatchling version) && \
		$(BIN)/python requirements/sbom.py requirements/run.txt "$$version" "dist/gpu_scheduler-$$version.cdx.json"
	cd dist && sha256sum -- * >../SHA256SUMS.new && mv ../SHA256SUMS.new SHA256SUMS

audit: $(READY) ## look up known vulnerabilities of the pinned packages (needs PyPI or OSV)
	PIP_AUDIT=$(BIN)/pip-audit sh requirements/audit.sh

# DOCKER=podman works as well.
DOCKER ?= docker
docker-build: build ## images of server and agent (DOCKER=podman builds without a daemon)
	$(DOCKER) build --tag gpu-scheduler-server --file deploy/docker/server.Dockerfile .
	$(DOCKER) build --tag gpu-scheduler-agent --file deploy/docker/agent.Dockerfile .

docker docker-webhook docker-agent: build ## the image of scheduler, webhook and agent on Kubernetes: one for all three
	$(DOCKER) build --tag gpu-scheduler:$$($(BIN)/hatchling version) --file deploy/docker/kubernetes.Dockerfile .

PROTOS = src/gpu_scheduler/wire/*.proto src/gpu_scheduler/kubernetes/agent/kubelet_api/*.proto
proto: $(READY) ## write the Python form of the .proto files anew
	$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src $(PROTOS)

crds: $(READY) ## write the CustomResourceDefinitions in charts/gpu-scheduler/crds anew
	$(BIN)/python -m gpu_scheduler.kubernetes.crds charts/gpu-scheduler/crds

HELM ?= helm
MANIFESTS = deployments/k8s/gpu-scheduler.yaml
manifests: crds ## write deployments/k8s anew from the Helm chart (HELM=path of helm)
	$(HELM) template gpu-scheduler charts/gpu-scheduler --namespace gpu-scheduler --include-crds \
		--kube-version 1.35.0 --api-versions resource.k8s.io/v1 >$(MANIFESTS).new
	mv $(MANIFESTS).new $(MANIFESTS)

# Node and npm come from PyPI with the other tools; no user needs them.
.PHONY: web
web: $(READY) ## check the source of the dashboard in web/, and build what the server sends
	PYTHON=$(BIN)/python sh web/build.sh

# UPGRADE=1 takes the newest versions; without it only what pyproject.toml changed moves.
pins: $(UV_READY) ## rewrite requirements/*.txt from pyproject.toml (UPGRADE=1: newest versions)
	UV=$(BIN)/uv UPGRADE=$(UPGRADE) sh requirements/pin.sh

# Long, but once for each version; LAB_ARGS="--jobs 1" leaves the other cores alone.
LAB_ARGS ?=
kubernetes-lab: $(READY) ## build a real Kubernetes for tests into the user's cache (needs Go)
	$(BIN)/python -m tests.kubernetes.lab build $(LAB_ARGS)

clean: ## remove all that was made, the environment too
	rm -rf $(VENV) build dist htmlcov .coverage .coverage.*
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(UV_READY): requirements/uv.txt
	@if [ -z "$(BASE_PYTHON)" ]; then \
		echo "make: '$(PYTHON)' does not run; name a Python 3.11 or newer, as in: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
		exit 1; \
	fi
	@if ! "$(BASE_PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
		echo "make: gpu-scheduler needs Python 3.11 or newer and '$(PYTHON)' is $(PYTHON_TAG); name another, as in: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
		exit 1; \
	fi
	rm -rf $(VENV)
	"$(BASE_PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@touch $@

# Beside a home that cannot be written to, uv keeps its cache in the environment.
$(PINS_READY): $(UV_READY) requirements/dev.txt
	@if [ -z "$$UV_CACHE_DIR" ] && [ ! -w "$${XDG_CACHE_HOME:-$${HOME:-/}}" ]; then \
		export UV_CACHE_DIR="$(CURDIR)/$(VENV)/uv-cache"; \
	fi; \
	set -x; \
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements/uv.txt requirements/dev.txt
	@touch $@

$(READY): $(PINS_READY) pyproject.toml
	@if [ -z "$$UV_CACHE_DIR" ] && [ ! -w "$${XDG_CACHE_HOME:-$${HOME:-/}}" ]; then \
		export UV_CACHE_DIR="$(CURDIR)/$(VENV)/uv-cache"; \
	fi; \
	set -x; \
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@
