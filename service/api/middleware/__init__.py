"""What each request passes before a route: identity, scopes, rates, limits, headers."""
