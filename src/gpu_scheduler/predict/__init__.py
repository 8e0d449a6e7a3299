"""Estimate: how long a job will run, from what can be known when it is submitted.

Online and without a training step. `socket.Predictor` is what the rest of the house sees, so that
another estimator can take its place.
"""
