"""On a node: find devices, run work, watch it, report."""
