"""Nodes: inventory, cordon and drain, lost nodes, reconciliation with what agents report.

Connections to agents are not here: the drivers turn them into facts.
"""
