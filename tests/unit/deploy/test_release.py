"""What a release holds beside the package: bill of materials, checksums, audit and signature."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
REQUIREMENTS = ROOT / "requirements"
PAGE = (ROOT / "docs/howto/release.md").read_text(encoding="utf-8")


def write_sbom(output: Path, epoch: str = "1700000000") -> dict[str, Any]:
    subprocess.run(
        [sys.executable, REQUIREMENTS / "sbom.py", REQUIREMENTS / "run.txt", "1.2.3", output],
        env={**os.environ, "SOURCE_DATE_EPOCH": epoch},
        check=True,
    )
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return found


def test_bill_of_materials_lists_every_pin_with_its_hashes(tmp_path: Path) -> None:
    bill = write_sbom(tmp_path / "sbom.json")
    pins = (REQUIREMENTS / "run.txt").read_text(encoding="utf-8")
    listed = {f"{each['name']}=={each['version']}" for each in bill["components"]}
    assert listed == set(re.findall(r"(?m)^[a-z0-9][^ ]*==[^ ]+", pins))
    hashes = {
        found["content"]
        for each in bill["components"]
        for reference in each["externalReferences"]
        for found in reference["hashes"]
    }
    assert hashes == set(re.findall(r"sha256:([0-9a-f]{64})", pins))


def test_bill_of_materials_says_what_requires_a_package(tmp_path: Path) -> None:
    bill = write_sbom(tmp_path / "sbom.json")
    requires = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}
    assert bill["metadata"]["component"]["version"] == "1.2.3"
    assert {"grpcio", "msgspec", "uvicorn"} <= set(requires["gpu-scheduler"])
    assert "h11" in requires["uvicorn"]
    needed = {name for names in requires.values() for name in names}
    assert needed == set(requires) - {"gpu-scheduler"}


def test_bill_of_materials_is_reproducible(tmp_path: Path) -> None:
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    write_sbom(first)
    write_sbom(second)
    assert first.read_bytes() == second.read_bytes()


AUDIT = """#!/bin/sh
# Answers as pip-audit does: 1 for a vulnerable package, with its id in the table.
case "$*" in
*vulnerable.txt*) {canary} ;;
*uv.txt*) {uv} ;;
*) {pins} ;;
esac
"""
NONE_KNOWN = "echo 'No known vulnerabilities found'; exit 0"
VULNERABLE = "echo 'jinja2 2.10 PYSEC-2019-217 2.10.1'; exit 1"
UNREACHABLE = "echo 'ConnectionError: no route to host' >&2; exit 1"


@pytest.mark.parametrize(
    ("canary", "pins", "uv", "code", "said"),
    [
        (VULNERABLE, NONE_KNOWN, NONE_KNOWN, 0, "No known vulnerabilities found"),
        (VULNERABLE, VULNERABLE, NONE_KNOWN, 1, "PYSEC-2019-217"),
        (VULNERABLE, NONE_KNOWN, VULNERABLE, 1, "PYSEC-2019-217"),
        (UNREACHABLE, NONE_KNOWN, NONE_KNOWN, 2, "no route to host"),
        (NONE_KNOWN, NONE_KNOWN, NONE_KNOWN, 2, "nothing was checked"),
    ],
    ids=["clean", "vulnerable", "vulnerable-installer", "unreachable", "mirror-without-data"],
)
def test_audit_passes_only_on_vulnerability_data(
    tmp_path: Path, canary: str, pins: str, uv: str, code: int, said: str
) -> None:
    stub = tmp_path / "pip-audit"
    stub.write_text(AUDIT.format(canary=canary, pins=pins, uv=uv))
    stub.chmod(0o755)
    ended = subprocess.run(
        ["sh", REQUIREMENTS / "audit.sh"],
        env={**os.environ, "PIP_AUDIT": str(stub)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == code
    assert said in ended.stdout + ended.stderr


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_documented_signature_is_verified_and_detects_changes(tmp_path: Path) -> None:
    """Run the commands of the page, with a key of its own."""
    key = tmp_path / "release_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    public = " ".join(key.with_suffix(".pub").read_text().split()[:2])
    (tmp_path / "signers").write_text(f"maintainer@example.org {public}\n")
    (tmp_path / "dist").mkdir()
    sums = tmp_path / "dist" / "SHA256SUMS"
    sums.write_text("0" * 64 + "  gpu_scheduler-0.1.0.tar.gz\n")
    sign = re.search(r"(?m)^ssh-keygen -Y sign .*$", PAGE)
    verify = re.search(r"(?m)^ssh-keygen -Y verify .*\\\n.*$", PAGE)
    assert sign
    assert verify

    def run(command: str) -> int:
        command = command.replace("~/.ssh/release_key", str(key)).replace(
            "-f signers", "-f ../signers"
        )
        where = tmp_path / "dist" if " verify " in command else tmp_path
        return subprocess.run(["sh", "-c", command], cwd=where, check=False).returncode

    assert run(sign[0]) == 0
    assert run(verify[0]) == 0
    sums.write_text("1" * 64 + "  gpu_scheduler-0.1.0.tar.gz\n")
    assert run(verify[0]) != 0
