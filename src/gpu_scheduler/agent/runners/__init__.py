"""The ways to run a job: as a process, in a tmux or screen session, in a container."""
