"""gRPC: the scheduler for programs, how nodes join, and who may open the session of an agent."""
