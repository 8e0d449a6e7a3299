"""Writes the bill of materials (SBOM) of a release, in the format of CycloneDX 1.6.

A file of hashed pins comes in: `python requirements/sbom.py requirements/run.txt VERSION OUTPUT`.
A JSON file with every package, the hashes of its archives, and what requires it goes out; it is
checked against the schema. The same pins and SOURCE_DATE_EPOCH give the same bytes.
"""

import os
import re
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

NAME = "gpu-scheduler"
PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^ ]+)(.*?)(?=^\S|\Z)", re.DOTALL | re.MULTILINE)
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
REQUIRED_BY = re.compile(r"^ +# +(?:via +)?([a-z0-9][a-z0-9._-]*)(?: \(pyproject\.toml\))?$", re.M)


def bill_of_materials(pins: str, version: str, made_at: datetime) -> Bom:
    """List the pinned packages, and which of them requires which."""
    root = Component(
        name=NAME,
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=NAME,
        purl=PackageURL("pypi", name=NAME, version=version),
        licenses=[LicenseExpression("MIT")],
    )
    packages = {NAME: root}
    required_by: dict[str, list[str]] = {}
    for name, pinned, rest in PIN.findall(pins):
        packages[name] = Component(
            name=name,
            version=pinned,
            type=ComponentType.LIBRARY,
            bom_ref=name,
            purl=PackageURL("pypi", name=name, version=pinned),
            external_references=[
                ExternalReference(
                    type=ExternalReferenceType.DISTRIBUTION,
                    url=XsUri(f"pkg:pypi/{name}@{pinned}"),
                    comment="the archives that may be installed",
                    hashes=[
                        HashType(alg=HashAlgorithm.SHA_256, content=found)
                        for found in HASH.findall(rest)
                    ],
                )
            ],
        )
        required_by[name] = REQUIRED_BY.findall(rest)
    bom = Bom(
        components=[each for each in packages.values() if each is not root],
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"pkg:pypi/{NAME}@{version}\n{pins}"),
    )
    bom.metadata.component = root
    bom.metadata.timestamp = made_at
    requires = {name: [n for n, by in required_by.items() if name in by] for name in packages}
    for name, package in packages.items():
        bom.register_dependency(package, [packages[each] for each in requires[name]])
    return bom


def main(pin_file: str, version: str, output: str) -> int:
    """Write the file; 1 if it does not fit the schema."""
    made_at = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)
    bom = bill_of_materials(Path(pin_file).read_text(encoding="utf-8"), version, made_at)
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.stderr.write(f"sbom: {output} would not fit the schema of CycloneDX: {error}\n")
        return 1
    Path(output).write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
