"""The service and its clients: REST API, record, queue, process, Python client, command line."""
