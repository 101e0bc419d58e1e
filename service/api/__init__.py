"""The REST API: routes, answers, errors, access and limits. Runs in the service's process."""
