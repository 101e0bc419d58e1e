"""Starts what is queued: drivers of experiments, and analyses. Runs in the service's process."""
