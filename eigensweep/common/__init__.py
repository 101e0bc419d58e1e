"""What every room may use. Nothing here imports from a room."""
