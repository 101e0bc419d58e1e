"""Which addresses a webhook may have. Nothing is resolved or sent here."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

LONGEST_URL: Final = 2000
HTTPS_PORT: Final = 443
KEY_PREFIX: Final = "whsec_"
"""The prefix of a secret in Base64, after Standard Webhooks."""
CARRIES_IPV4: Final = tuple(map(ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16")))
"""IPv6 networks that lead to an IPv4 address, which may be a private one."""


class WebhookRefusedError(ValueError):
    """A webhook may not have this address; the message says why, and what would work."""


def check_url(url: str, hosts: Collection[str]) -> tuple[str, int]:
    """Return host and port of a webhook's address.

    `hosts` are the names that are allowed, each perhaps with a port: `hooks.example.org:8443`.

    >>> check_url("https://hooks.example.org/T1?x=2", {"hooks.example.org"})
    ('hooks.example.org', 443)

    Raises:
        WebhookRefusedError: if it is not https, or its host is not one of `hosts`.
    """
    if not hosts:
        raise WebhookRefusedError(
            "this service sends no webhooks; EIGENSWEEP_WEBHOOK_HOSTS names the hosts that it may "
            "send to"
        )
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port or HTTPS_PORT
    except ValueError as error:
        raise WebhookRefusedError(f"'{url[:80]}' is not an address: {error}") from error
    if parts.scheme != "https" or not host:
        raise WebhookRefusedError(
            f"a webhook has an address such as https://hooks.example.org/path, not '{url[:80]}'"
        )
    if parts.username is not None or parts.fragment or not (url.isascii() and url.isprintable()):
        raise WebhookRefusedError(
            "a webhook's address has no user, no part behind '#' and only signs of ASCII; a secret "
            "of the receiver belongs into its path"
        )
    if len(url) > LONGEST_URL:
        raise WebhookRefusedError(f"a webhook's address has at most {LONGEST_URL} signs")
    name = host if port == HTTPS_PORT else f"{host}:{port}"
    if name not in {each.lower() for each in hosts}:
        raise WebhookRefusedError(
            f"webhooks may not go to '{name}'; they may go to {', '.join(sorted(hosts))} "
            "(EIGENSWEEP_WEBHOOK_HOSTS)"
        )
    return host, port


def is_allowed(address: str, networks: Collection[IPv4Network | IPv6Network]) -> bool:
    """Return whether a webhook may go to an IP address: a public one, or one of these networks.

    >>> [is_allowed(each, [ip_network("10.1.0.0/16")]) for each in ("10.1.0.7", "10.2.0.7")]
    [True, False]
    """
    found = ip_address(address.partition("%")[0])
    return is_public(address) or any(found in network for network in networks)


def is_public(address: str) -> bool:
    """Return whether an IP address belongs to the internet, not to this machine or a network here.

    >>> [is_public(each) for each in ("93.184.216.34", "10.0.0.7", "::1", "::ffff:127.0.0.1")]
    [True, False, False, False]
    """
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        if any(found in network for network in CARRIES_IPV4):
            return False
    return found.is_global and not found.is_multicast
