"""Old name of `jobs/probe_child.py`: an agent from before the upgrade runs this file by its path.

`python -I -S .../agent/check_child.py JSON`; such an interpreter cannot import this package.
"""

import os
import runpy

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - starts fast
    runpy.run_path(os.path.join(here, "jobs", "probe_child.py"), run_name="__main__")  # noqa: PTH118
