"""Old name of `lease_watchdog`: a launcher from before the upgrade starts it by this name.

`python -I -m gpu_scheduler.agent.launcher.guard --dir D --mark M`
"""

import sys

from gpu_scheduler.agent.launcher.lease_watchdog import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
