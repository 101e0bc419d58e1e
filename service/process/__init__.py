"""The service's process itself: start and stop, home folder, ports, guard, MLflow's server.

`backup` and `checkup` run in a process of whoever calls for them.
"""
