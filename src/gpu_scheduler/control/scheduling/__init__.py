"""Running the engine: the cycle, its reservations, forecast audit, advance reservations."""
