"""Corpora on this machine: fetched, imported and verified. Runs in a user's terminal."""
