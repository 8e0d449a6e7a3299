"""One HTML file that compares several policies on the same workload.

Runs and their measures come in, one self-contained file goes out: no network, no fonts or scripts
from elsewhere, the same bytes for the same runs. `page` puts it together, `sections` turns runs
into a bounded number of points and rows, and `capacity` is the report of one workload on clusters
of several sizes. `document` has the parts of a page, which the script of the dashboard draws.
"""

from gpu_scheduler.simulator.report.page import write_report

__all__ = ["write_report"]
