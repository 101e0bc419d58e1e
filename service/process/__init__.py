"""The service as a process: start and stop, home folder, ports, guard, MLflow's server."""
