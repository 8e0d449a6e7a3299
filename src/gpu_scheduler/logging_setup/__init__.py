"""Logging of our processes: JSON lines in files that rotate by size.

Server, agent and launcher use the same format. Writing a line never fails and never blocks: on a
full disk lines are lost, and their number is logged when there is space again.
"""
