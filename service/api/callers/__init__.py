"""Who sends a request, and what they may do: callers, their tokens and sessions."""
