"""Running the engine: the cycle, stored reservations, advance reservations, forecast audit."""
