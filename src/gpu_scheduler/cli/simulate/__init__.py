"""`tgpu simulate`: options, workloads, comparisons and reports of the simulator."""
