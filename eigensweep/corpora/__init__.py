"""Fetching, importing and verifying corpora on this machine. Runs in a user's terminal."""
