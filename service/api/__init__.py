"""The REST API, in the service's process: routes, schemas, errors, access and limits."""
