"""The OOM score of a process; one that may not be lowered stays as it is."""

import subprocess
import sys

SET = """
from gpu_scheduler.agent.oom_score import set_oom_score
for value in (300, 200):
    set_oom_score(value)
print(open("/proc/self/oom_score_adj").read())
set_oom_score(-5000)
"""


def test_oom_score_is_set_and_error_is_ignored() -> None:
    done = subprocess.run([sys.executable, "-c", SET], capture_output=True, text=True, check=True)
    assert int(done.stdout) in {200, 300}
