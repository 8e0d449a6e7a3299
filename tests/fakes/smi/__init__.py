"""A fake nvidia-smi: an executable that prints recorded outputs.

Each answer is chosen by the first argument that is found in its name: `--query-gpu`,
`--query-compute-apps`, `-L`, `topo`. The program is a shell script, so it starts as fast as sh.
"""

from pathlib import Path

SAMPLES = Path(__file__).parent / "samples"
SCRIPT = """#!/bin/sh
here=$(dirname "$0")
echo "$*" >> "$here/calls"
[ -e "$here/delay" ] && exec sleep "$(cat "$here/delay")"
case "$1" in
  --query-gpu=*) name=query-gpu ;;
  --query-compute-apps=*) name=query-compute-apps ;;
  -L) name=list ;;
  topo) name=topo ;;
esac
case "$1" in
  --query-gpu=*memory.used*) [ -e "$here/query-gpu-now" ] && name=query-gpu-now ;;
esac
for field in $(cat "$here/refused" 2>/dev/null); do
  case "$1" in
    *"$field"*) echo "Field \\"$field\\" is not a valid field to query."; exit 2 ;;
  esac
done
cat "$here/$name" 2>/dev/null
exit "$(cat "$here/$name.code" 2>/dev/null || echo 0)"
"""


class FakeSmi:
    """Answers in a directory of its own; `command` is the path to run."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.command = str(directory / "nvidia-smi")
        program = directory / "nvidia-smi"
        program.write_text(SCRIPT)
        program.chmod(0o755)

    def answer(self, name: str, text: str, *, code: int = 0) -> None:
        (self.directory / name).write_text(text)
        (self.directory / f"{name}.code").write_text(str(code))

    def sample(self, machine: str) -> None:
        """Answer as the machine whose outputs are in `samples`."""
        for path in sorted((SAMPLES / machine).iterdir()):
            self.answer(path.stem, path.read_text())

    def refuse(self, *fields: str) -> None:
        """Reject some fields, as older drivers do."""
        (self.directory / "refused").write_text(" ".join(fields))

    def delay(self, seconds: float) -> None:
        (self.directory / "delay").write_text(str(seconds))

    @property
    def calls(self) -> list[str]:
        return (self.directory / "calls").read_text().splitlines()
