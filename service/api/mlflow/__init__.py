"""The way to MLflow through this service, and what may go it."""
