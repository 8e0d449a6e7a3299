"""The generated protocol module matches the .proto file."""

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def test_generated_protocol_is_current(tmp_path: Path) -> None:
    protos = sorted(SOURCE.rglob("*.proto"))
    assert protos
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", "-I", str(SOURCE)),
            *(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", *map(str, protos)),
        ],
        check=True,
    )
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*_pb2.py*"))
    assert made
    stale = [p for p in made if (SOURCE / p).read_bytes() != (tmp_path / p).read_bytes()]
    assert stale == [], "run 'make proto'"
