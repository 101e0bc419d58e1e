"""REST API, record of experiments and queue: what stands between people and the drivers."""
