"""The service: REST API, record, queue, process."""
