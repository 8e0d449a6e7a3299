"""What we measure. `python -m benchmarks` runs every measure and prints one line of JSON for each.

Every figure stands beside a floor: the least that plain Python needs for the same number of steps,
measured in the same process. So a slow or busy machine shows in both.
"""
