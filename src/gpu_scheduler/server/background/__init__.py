"""Tasks that the leading server runs beside its API: housekeeping, fencing, notifications."""
