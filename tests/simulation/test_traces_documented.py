"""Every field of a trace file and every parameter of the generator is documented."""

from dataclasses import fields
from pathlib import Path

import pytest

from gpu_scheduler.simulator.generator import WorkShape
from gpu_scheduler.simulator.traces import helios_philly, openb
from gpu_scheduler.simulator.traces.detect import TraceFormat
from gpu_scheduler.simulator.traces.records import JOB_COLUMNS, NODE_COLUMNS, TENANT_COLUMNS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "traces.md"
LAYOUTS = (
    helios_philly.HELIOS_LAYOUT,
    openb.POD_LAYOUT,
    openb.NODE_LAYOUT,
    helios_philly.PHILLY_LAYOUT,
)


@pytest.mark.parametrize(
    "name",
    sorted(
        {
            *JOB_COLUMNS,
            *NODE_COLUMNS,
            *TENANT_COLUMNS,
            *(column for layout in LAYOUTS for column in layout.columns),
            *(item.name for item in fields(WorkShape)),
            *TraceFormat,
        }
    ),
)
def test_traces_page_documents_every_name(name: str) -> None:
    assert f"`{name}`" in PAGE.read_text(encoding="utf-8")


def test_traces_page_invents_no_columns() -> None:
    table = PAGE.read_text(encoding="utf-8").split("## Our own CSV")[1].split("## Our own JSON")[0]
    named = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert named == list(JOB_COLUMNS)
