"""Predicts how long a job will run, from what is known when it is submitted.

The history learns online, without a training step; a trained model replaces it where it is better.
Other packages use `interface.Predictor`. Nothing here reads a clock or decides which job runs.
Only `training`, a process of its own, does I/O and uses the library of an extra.
"""
