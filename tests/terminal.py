"""A real terminal for tests: tmux on a private socket, with key presses and screen contents."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_tmux = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
LONGEST_S = 60.0
PROMPT = "here>"
"""The screen is captured without trailing spaces."""


class Terminal:
    """One window with a shell in it."""

    def __init__(
        self, socket: str, columns: int, rows: int, environment: Mapping[str, str]
    ) -> None:
        self._socket = socket
        self._asked = 0
        kept = {name: value for name, value in environment.items() if name not in ("TMUX", "ENV")}
        self._environment = kept | {"TERM": "xterm-256color"}
        size = ("-x", str(columns), "-y", str(rows))
        self._tmux(
            "new-session", "-d", "-s", "t", *size, f"PS1='{PROMPT} ' bash --norc --noprofile"
        )
        self.see(PROMPT)

    def type(self, text: str) -> None:
        """Send literal keys."""
        self._tmux("send-keys", "-t", "t", "-l", "--", text)

    def press(self, *keys: str) -> None:
        """Keys by name: Enter, C-c, Escape, Down."""
        self._tmux("send-keys", "-t", "t", *keys)

    def enter(self, line: str) -> None:
        """Send a line and Enter."""
        self.type(line)
        self.press("Enter")

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-t", "t", "-x", str(columns), "-y", str(rows))

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p", "-t", "t")

    def coloured(self) -> str:
        """The screen with its colours."""
        return self._tmux("capture-pane", "-p", "-e", "-t", "t")

    def lines(self) -> list[str]:
        return self.screen().split("\n")[:-1]

    def see(self, text: str) -> str:
        """Wait until a text is on the screen."""
        return self.until(lambda screen: text in screen, f"{text!r} to appear")

    def until(self, true: Callable[[str], bool], what: str = "it") -> str:
        """Wait until a condition on the screen holds."""
        give_up = time.monotonic() + LONGEST_S
        while True:
            screen = self.screen()
            if true(screen):
                return screen
            assert time.monotonic() < give_up, f"waited for {what}; the screen shows:\n{screen}"
            time.sleep(0.05)

    def answer(self, line: str) -> str:
        """The output of a shell line, if that is one line."""
        self._asked += 1
        mark = f"{self._asked}=>"
        self.enter(f"echo '{self._asked}=''>' $({line}) .")
        screen = self.until(lambda shown: _said(shown, mark) is not None, line)
        return _said(screen, mark) or ""

    def owns(self, pid: int) -> bool:
        """Whether a process runs in this terminal."""
        shell = int(self._tmux("display-message", "-p", "-t", "t", "#{pane_pid}"))
        while pid > 1:
            if pid == shell:
                return True
            try:
                status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
            except OSError:  # a process of another user that has just exited
                return False
            pid = int(status.rpartition(")")[2].split()[1])
        return False

    def process(self, pattern: str) -> int:
        """The one process in this terminal whose command line contains a pattern.

        Other runs of the same tests may be in progress.
        """
        found = subprocess.run(
            ["pgrep", "-f", "--", pattern], capture_output=True, text=True, check=True
        )
        (mine,) = [pid for pid in map(int, found.stdout.split()) if self.owns(pid)]
        return mine

    def close(self) -> None:
        self._tmux("kill-server")

    def _tmux(self, *words: str) -> str:
        ended = subprocess.run(
            ["tmux", "-S", self._socket, "-f", "/dev/null", *words],
            capture_output=True,
            text=True,
            env=self._environment,
            check=True,
            timeout=LONGEST_S,
        )
        return ended.stdout


def _said(screen: str, mark: str) -> str | None:
    for line in screen.split("\n"):
        if line.startswith(mark) and line.endswith("."):
            return line.removeprefix(mark).removesuffix(".").strip()
    return None


@contextmanager
def a_terminal(
    environment: Mapping[str, str],
    columns: int = 100,
    rows: int = 30,
    program: tuple[str, ...] = (sys.executable, "-m", "gpu_scheduler"),
) -> Iterator[Terminal]:
    """A terminal that is removed afterwards with all its processes. `tgpu` runs `program` there."""
    directory = tempfile.mkdtemp(prefix="tgpu-t")
    bin_dir = Path(directory, "bin")
    bin_dir.mkdir()
    script = bin_dir / "tgpu"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(program)} "$@"\n')
    script.chmod(0o755)
    own = dict(environment) | {"PATH": f"{bin_dir}:{environment['PATH']}"}
    terminal = Terminal(f"{directory}/tmux", columns, rows, own)
    try:
        yield terminal
    finally:
        terminal.close()
        shutil.rmtree(directory, ignore_errors=True)
