"""The server as a process: its files, its parts joined, and the agent that it keeps alive."""
