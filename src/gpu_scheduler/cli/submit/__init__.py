"""Commands that submit work, their options, and the body of a submission.

`options` and `body` are loaded by every submission and import nothing heavy; files, models and
snapshots are loaded when they are needed.
"""
