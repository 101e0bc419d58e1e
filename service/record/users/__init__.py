"""Who posts, what they used and may use, and who did what."""
