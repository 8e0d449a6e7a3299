"""What the agent does for the jobs of its node: orders, environment, probes, logs, terminals."""
