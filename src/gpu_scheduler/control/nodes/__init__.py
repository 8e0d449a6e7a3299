"""Nodes: inventory, cordon and drain, lost nodes, reconciliation with what agents report."""
