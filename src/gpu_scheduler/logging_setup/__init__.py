"""What our processes say about themselves: lines of JSON in files that do not grow for ever.

Server, agent and launcher write in the same way. To write a line never fails and never stops
anybody: on a full disk lines are lost, and how many is written down when there is room again.
"""
