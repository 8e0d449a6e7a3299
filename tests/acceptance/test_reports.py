"""`tgpu report`, `tgpu usage` and invoices over jobs that really ran."""

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.cli.accounting.report import without_formula
from tests.acceptance.conftest import RealServer, a_state_dir


@pytest.fixture(scope="module")
def lab() -> Iterator[RealServer]:
    with a_state_dir() as state_dir:
        server = RealServer(state_dir)
        prices = {"gpu_hour": {"A100": 3600}, "cpu_hour": 1, "currency": "CHF"}
        server.environment |= {
            f"GPU_SCHEDULER_COSTS_{name.upper()}": value
            if isinstance(value, str)
            else json.dumps(value)
            for name, value in prices.items()
        }
        server.start("2xA100-80GB")
        for words in (["-G", 2, "-J", "</script><b>"], ["-G", 1, "-J", "=cmd()"]):
            server.json("wait", server.submit(*words, "--", "sleep", "0.2"))
        server.tgpu("run", "-G", 1, "--", "sh", "-c", "exit 3", code=3)
        yield server
        server.stop()


def test_report_shows_jobs_of_today(lab: RealServer) -> None:
    said = lab.tgpu("report", "--period", "today").stdout
    assert "3 started, 2 completed, 1 failed" in said
    assert re.search(r"waits +mean .*median .*p90 .*max .*\(of 3\)", said)
    assert "CHF" in said
    report = lab.json("report", "--period", "today")
    held = report["total"]["gpu_hours"]
    assert held > 0.6 / 3600
    assert report["total"]["cost"] == pytest.approx(3600 * held, rel=1e-2)
    assert sum(one["gpu_hours"] for one in report["slices"]) == pytest.approx(held, abs=1e-5)


def test_usage_of_period_matches_report(lab: RealServer) -> None:
    (of_tenant, of_user) = lab.json("usage", "--period", "today")["usage"]
    assert of_tenant["gpu_hours"] == of_user["gpu_hours"]
    assert of_user["failed"] == 1
    kept = lab.json("usage")["usage"]
    assert kept[0]["gpu_hours"] == pytest.approx(of_tenant["gpu_hours"], abs=1e-5)
    assert "GPU HOURS" in lab.tgpu("usage", "--period", "week").stdout


def test_invoice_is_csv_or_json_and_sums_up(lab: RealServer) -> None:
    ended = lab.tgpu("report", "--invoice", "--period", "month", "--format", "csv")
    assert "the period has not ended" in ended.stderr
    rows = list(csv.DictReader(io.StringIO(ended.stdout)))
    assert {(row["item"], row["unit"]) for row in rows} >= {("gpu", "GPU-hour")}
    invoice = json.loads(
        lab.tgpu("report", "--invoice", "--period", "month", "--format", "json").stdout
    )
    assert sum(float(row["cost"]) for row in rows) == pytest.approx(float(invoice["total"]))
    text = lab.tgpu("report", "--invoice").stdout
    assert f"total {invoice['total']} CHF" in text
    empty = lab.tgpu("report", "--invoice", "--period", "2020-10", "--format", "csv")
    assert empty.stdout.startswith("tenant,user,item,model,amount,unit,price,cost,currency\n")
    assert empty.stderr == ""


def test_no_invoice_cell_is_a_formula() -> None:
    assert without_formula("=cmd()") == "'=cmd()"
    assert without_formula("@x") == "'@x"
    assert (without_formula("ann"), without_formula("")) == ("ann", "")


def test_html_report_is_one_file_with_names_as_data(lab: RealServer, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    lab.tgpu("report", "--period", "today", "--html", file)
    text = file.read_text()
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)=\"?[/h]", text.partition('<script type="module">')[0])
    data = re.search(r'id="report">(.*?)</script>', text)
    assert data is not None
    page = json.loads(data[1])
    assert page["title"] == "GPU report for today"
    kinds = {block["kind"] for section in page["sections"] for block in section["blocks"]}
    assert kinds >= {"figures", "chart", "bars", "table"}
    assert "</script><b>" not in text
    refused = lab.tgpu("report", "--html", tmp_path / "no" / "way.html", code=2)
    assert "cannot be written" in refused.stderr


def test_invalid_period_is_rejected_with_valid_forms(lab: RealServer) -> None:
    refused = lab.tgpu("report", "--period", "last tuesday", code=2)
    assert "2026-10-01..2026-10-15" in refused.stderr
    refused = lab.tgpu("report", "--format", "csv", code=2)
    assert "--invoice" in refused.stderr
