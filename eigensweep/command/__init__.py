"""The command line `eigensweep`. It runs in a user's terminal and speaks HTTP to the service."""
