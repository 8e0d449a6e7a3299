"""Usage accounting: totals, decayed usage for fair share, prices and reports.

Usage intervals with their times come in, integers come out. Nothing here reads a clock, does I/O or
decides which job runs.
"""
