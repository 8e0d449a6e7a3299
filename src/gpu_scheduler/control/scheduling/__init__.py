"""The scheduling cycle, which applies the engine's plan, and advance reservations.

Decisions are not made here but in `engine`.
"""
