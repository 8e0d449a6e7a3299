"""Keeping a job within its CPUs, memory, processes and devices, by whatever the host offers.

Detected by file system type and controllers, never by trial: on a hybrid host a directory below
/sys/fs/cgroup may be nothing but a directory on a tmpfs.
"""
