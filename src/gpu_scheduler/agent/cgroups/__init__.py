"""Control groups: limits for CPUs, memory, processes and devices of a job, in v1 and v2.

What the host offers is detected by file system type and controllers, never by trial: on a hybrid
host a directory below /sys/fs/cgroup may be an ordinary directory on a tmpfs.
"""
