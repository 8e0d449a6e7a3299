"""``python -m gpu_scheduler`` is the same program as ``tgpu``."""

import sys

from gpu_scheduler.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
