"""gRPC services: the public SchedulerService, and joining nodes with their certificates."""
