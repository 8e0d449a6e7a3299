"""The life of a job: submission, commands, waiting in the queue, and reports about its attempts.

Gangs over several nodes, services and the scheduling cycle have modules of their own.
"""
