"""The proxy to MLflow's server, and the requests that it lets through."""
