"""Nodes as the core knows them: inventory, cordon and drain, lost nodes, reconciliation."""
