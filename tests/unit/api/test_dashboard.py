"""The files of the dashboard as the server sends them, and that they match their source."""

import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.api.http.dashboard import dashboard_operations
from tests.unit.api.lab import ApiLab
from tests.unit.api.test_app import Nobody

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "src/gpu_scheduler/dashboard/static"
MOST_COMPRESSED = 150_000


@pytest.fixture(scope="module")
def lab() -> Iterator[ApiLab]:
    with ApiLab() as lab:
        yield lab


def test_page_allows_only_its_own_files_and_no_text_that_becomes_html(lab: ApiLab) -> None:
    reply = lab.get("/", root=True)
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    text = reply.body.decode()
    assert "<style" not in text
    assert "style=" not in text
    assert "<script>" not in text


def test_every_file_that_the_page_names_is_served(lab: ApiLab) -> None:
    page = lab.get("/", root=True).body.decode()
    for name in ("app.js", "style.css", "icon.svg"):
        assert f'"/dashboard/{name}"' in page
        reply = lab.get(f"/dashboard/{name}", root=True)
        assert reply.status == 200
        assert reply.body == (STATIC / name).read_bytes()


def test_unchanged_file_is_not_sent_again(lab: ApiLab) -> None:
    first = lab.get("/dashboard/app.js", root=True)
    tag = first.headers["etag"]
    again = lab.get("/dashboard/app.js", root=True, headers={"If-None-Match": tag})
    assert (again.status, again.body) == (304, b"")
    assert again.headers["cache-control"] == "no-cache"


def test_browsers_get_compressed_files_and_the_first_page_is_small(lab: ApiLab) -> None:
    total = 0
    for operation in dashboard_operations():
        reply = lab.get(operation.path, root=True, headers={"Accept-Encoding": "gzip, br"})
        assert reply.headers["content-encoding"] == "gzip"
        assert gzip.decompress(reply.body) == lab.get(operation.path, root=True).body
        total += len(reply.body)
    assert total < MOST_COMPRESSED


def test_page_of_another_site_gets_nothing(lab: ApiLab) -> None:
    headers = {"Origin": "http://evil.example"}
    assert lab.get("/", root=True, headers=headers, unix=False).status == 403


def test_overview_leaves_the_gpus_out_on_request(lab: ApiLab) -> None:
    assert lab.get("/overview?limit=1").json["gpus"]
    assert lab.get("/overview?limit=1&without_gpus=true").json["gpus"] == []


def test_unknown_callers_get_the_page_but_no_data() -> None:
    with ApiLab(authenticators=[Nobody()], server_uid=0) as lab:
        assert lab.get("/", root=True).status == 200


def test_types_of_the_dashboard_match_the_api() -> None:
    written = subprocess.run(
        [sys.executable, "web/api_types.py"], cwd=ROOT, capture_output=True, check=True, timeout=60
    )
    committed = (ROOT / "web/src/api-types.ts").read_bytes()
    assert written.stdout == committed, "the API has changed; run 'make web'"


@pytest.mark.slow
def test_built_dashboard_matches_its_source(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHON": sys.executable}
    built = subprocess.run(
        ["sh", "web/build.sh", str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if built.returncode and ("ENOTFOUND" in built.stderr or "EAI_AGAIN" in built.stderr):
        pytest.skip("npm cannot reach a package registry")
    assert built.returncode == 0, built.stdout + built.stderr
    fresh = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_bytes() for path in STATIC.iterdir()}
    assert fresh == committed, "web/ has changed; run 'make web' and commit the result"
