"""Jobs: submission, commands of users, queueing, and reports about attempts."""
