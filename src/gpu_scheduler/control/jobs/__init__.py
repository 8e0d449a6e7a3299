"""The record of jobs: submission, queueing, commands of users, and reports about attempts."""
