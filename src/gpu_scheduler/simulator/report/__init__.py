"""One HTML file that compares several policies on the same workload.

Runs and their measures come in, one self-contained file goes out: no network, no fonts or scripts
from elsewhere, the same bytes for the same runs. `page` puts it together; `curves` turns runs into
a bounded number of points; `line_chart` and `bar_chart` draw; `markup` escapes every text.
"""

from gpu_scheduler.simulator.report.page import write_report

__all__ = ["write_report"]
