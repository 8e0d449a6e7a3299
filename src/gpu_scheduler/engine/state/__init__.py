"""The cluster state that one decision reads: nodes, queue, running jobs and their index.

Here: what is free and the undo log over it. Not here: rules about which job may use it.
"""
