"""`tgpu simulate`: options, workloads, comparisons and the filling experiment.

The simulator itself is in `gpu_scheduler.simulator`; here are its options and its output.
"""
