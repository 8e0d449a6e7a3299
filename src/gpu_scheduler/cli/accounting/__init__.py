"""Commands about tenants, limits, usage, reports and metrics.

They read accounts from the server and render them; prices and sums are computed there.
"""
