"""The engine and the control core on virtual time, fed with traces or generated work.

No scheduling rule lives here: this package reads work, moves the clock, answers the control
core's orders as an ideal cluster would, and measures what came out.
"""
