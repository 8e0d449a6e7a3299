"""Predicts how long a job will run, from what is known when it is submitted.

Predictors learn online, without a training step. Other packages use `interface.Predictor`, so that
another predictor can replace `history`. Nothing here reads a clock or decides which job runs.
"""
