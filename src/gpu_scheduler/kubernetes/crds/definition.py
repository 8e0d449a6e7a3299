"""From a custom resource to its CustomResourceDefinition, as YAML."""

from dataclasses import dataclass
from typing import Any

import yaml

from gpu_scheduler.kubernetes.crds.schema import Schema, description_of, schema_of
from gpu_scheduler.kubernetes.objects import ObjectT, Resource

GROUP = "gpu.scheduling"
VERSION = "v1"
HEADER = "# Written by 'make crds' from src/gpu_scheduler/kubernetes/crds; do not edit.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of `kubectl get`; only with `-o wide` if it is wide.

    Times that lie in the future must be strings: kubectl shows `<invalid>` for a future date.
    """

    name: str
    path: str
    type: str = "string"
    is_wide: bool = False
    description: str = ""


AGE = Column(name="Age", path=".metadata.creationTimestamp", type="date")


@dataclass(frozen=True, kw_only=True)
class CustomResource(Resource[ObjectT]):
    """A resource of ours, and how kubectl shows it."""

    group: str = GROUP
    version: str = VERSION
    short_names: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()

    def definition(self) -> dict[str, Any]:
        """The manifest of the CustomResourceDefinition."""
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{self.plural}.{self.group}",
                "labels": {"app.kubernetes.io/name": "gpu-scheduler"},
            },
            "spec": {
                "group": self.group,
                "scope": "Namespaced" if self.is_namespaced else "Cluster",
                "names": {
                    "kind": self.kind,
                    "listKind": f"{self.kind}List",
                    "plural": self.plural,
                    "singular": self.kind.lower(),
                    "shortNames": list(self.short_names),
                    "categories": ["gpu"],
                },
                "versions": [
                    {
                        "name": self.version,
                        "served": True,
                        "storage": True,
                        "subresources": {"status": {}},
                        "schema": {"openAPIV3Schema": self._schema()},
                        "additionalPrinterColumns": [
                            _column(column) for column in (*self.columns, AGE)
                        ],
                    }
                ],
            },
        }

    def yaml(self) -> str:
        """The CustomResourceDefinition as a file."""
        return HEADER + yaml.safe_dump(self.definition(), sort_keys=False, width=100)

    def _schema(self) -> Schema:
        """Kubernetes itself checks version, kind and metadata."""
        found = schema_of(self.type)
        found["description"] = description_of(self.type)
        found["properties"] = {
            "apiVersion": {"type": "string", "description": "The version of this form."},
            "kind": {"type": "string", "description": "What this object is."},
            **found["properties"],
            "metadata": {"type": "object"},
        }
        return found


def _column(column: Column) -> dict[str, Any]:
    found: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.path}
    if column.description:
        found["description"] = column.description
    if column.is_wide:
        found["priority"] = 1
    return found
