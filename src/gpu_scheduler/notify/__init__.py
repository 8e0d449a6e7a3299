"""Tell people: events come in, notifications go out by webhook, mail or program.

What is to be told waits in a table until it was delivered or given up. Nothing here decides
anything, and whoever is slow to listen holds up nobody else.
"""
