"""Commands with a terminal: shell, attach, notebooks, editors and the live view.

`terminal` connects this terminal to that of a job. Commands that only print are elsewhere.
"""
