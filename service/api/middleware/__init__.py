"""What each request passes first: who asks, with what rights, how often and how much."""
