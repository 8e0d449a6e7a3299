"""Placement: which nodes and devices are feasible for a request, and which of them rank best."""
