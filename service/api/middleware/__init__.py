"""What each request passes before a route: scopes, rates, limits, headers, the way to sign in."""
