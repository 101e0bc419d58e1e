"""The service's process itself: start and stop, home folder, ports, guard, MLflow's server."""
