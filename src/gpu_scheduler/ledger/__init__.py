"""Account: who used what for how long, what that costs, and what it leaves of a budget.

Facts with their times come in; totals, decayed shares, budgets and bills come out as integers.
`shares` looks at lately and steers the order of the queue, `accounts` looks at all and feeds
`budget`, and `cost` prices intervals. Nothing here reads a clock or decides who runs.
"""
