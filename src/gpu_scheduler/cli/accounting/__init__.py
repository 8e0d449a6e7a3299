"""Commands about tenants, limits, usage, reports and metrics."""
