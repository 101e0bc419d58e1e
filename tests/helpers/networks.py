"""Nodes with network addresses of their own on this machine, so that links can be cut."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import pytest


@dataclass
class Network:
    """Namespaces on one bridge. This machine itself is on it, too, and reaches all of them."""

    bridge: str
    addresses: dict[str, str]
    """Of each node, by its name."""

    def inside(self, node: str, command: Sequence[str]) -> list[str]:
        """Return a command that runs on a node; the process keeps its number."""
        return ["ip", "netns", "exec", self.space(node), *command]

    def space(self, node: str) -> str:
        """Return the name of a node's namespace."""
        return f"{self.bridge}-{node}"

    def cut(self, node: str) -> None:
        """Cut a node's link: packets are lost, and nobody is told."""
        _run("link", "set", self.link(node), "down")

    def heal(self, node: str) -> None:
        """Join a node's link again."""
        _run("link", "set", self.link(node), "up")

    def link(self, node: str) -> str:
        return f"{self.bridge}{[*self.addresses].index(node)}"


def can_make_networks() -> bool:
    """Return whether namespaces and bridges can be made here."""
    bridge = f"es{uuid4().hex[:8]}"
    try:
        _run("link", "add", bridge, "type", "bridge")
        _run("netns", "add", bridge)
        _run("netns", "delete", bridge)
        _run("link", "delete", bridge)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


@contextmanager
def make_network(nodes: Sequence[str]) -> Iterator[Network]:
    """Make a network with these nodes and remove it at the end; skip where this is not possible."""
    mark = uuid4().hex
    subnet = f"10.{200 + int(mark[:2], 16) % 50}.{int(mark[2:4], 16)}"
    addresses = {node: f"{subnet}.{place}" for place, node in enumerate(nodes, start=2)}
    network = Network(f"es{mark[:6]}", addresses)
    if not can_make_networks():
        pytest.skip("become root, and install iproute2, to run this: it makes network namespaces")
    _run("link", "add", network.bridge, "type", "bridge")
    try:
        _run("address", "add", f"{subnet}.1/24", "dev", network.bridge)
        _run("link", "set", network.bridge, "up")
        for node, address in addresses.items():
            space, link = network.space(node), network.link(node)
            _run("netns", "add", space)
            _run("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
            _run("link", "set", link, "master", network.bridge, "up")
            _run("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run("-n", space, "link", "set", device, "up")
            # Ray finds its own address by asking which one leads outside.
            _run("-n", space, "route", "add", "default", "via", f"{subnet}.1")
        yield network
    finally:
        for node in addresses:
            if os.path.exists(f"/run/netns/{network.space(node)}"):
                _run("netns", "delete", network.space(node))
        _run("link", "delete", network.bridge)


def _run(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
