"""Words for a process that ended through no fault of its own.

Its node was full, or died; the store did not answer; or a driver found that another one has its
experiment by now.
"""

from __future__ import annotations

import re

from eigensweep.workers.shared.durable_files import StoreAwayError, StoreKeysError

SHORTAGE = "the node had no memory left, and Ray ended the process"
"""First words of the account; they are known again in what another process tells."""

NODE_DEATH = "the node of the process died"
"""First words of the account, as above."""

SHARED_DEATH = "the driver's process died, which several experiments shared"
"""First words of the account, as above."""

SUPERSEDED = "the driver has a successor"
"""First words of the account, as above."""

LONGEST_SUMMARY = 400
"""Characters of the line in which Ray says how much memory was taken."""


def explain_shortage(account: str) -> str:
    r"""Return what matters to a person in Ray's account, which is long.

    >>> told = "Memory was 9GB used.\nObjects: 0\nTop 10 memory users: PID\n7 9.00 python"
    >>> print(explain_shortage(told + "\nRefer to the documentation."))
    the node had no memory left, and Ray ended the process: Memory was 9GB used.
    Top 10 memory users: PID
    7 9.00 python
    """
    summary = account.partition("\n")[0][:LONGEST_SUMMARY]
    users = re.search(r"^Top \d+ memory users:.*?(?=^Refer to|\Z)", account, re.DOTALL | re.M)
    return f"{SHORTAGE}: {summary}" + (f"\n{users[0].strip()}" if users else "")


def is_shortage(words: str | None) -> bool:
    """Tell whether a process was ended because its node had no memory left."""
    return words is not None and SHORTAGE in words


def is_store_away(words: str | None) -> bool:
    """Tell whether a process ended because the store did not answer, by its traceback."""
    kinds = (StoreAwayError.__name__, StoreKeysError.__name__)
    return words is not None and any(kind in words for kind in kinds)


def is_shared_death(words: str | None) -> bool:
    """Tell whether a driver's process died that several experiments had; any may have ended it."""
    return words is not None and words.startswith(SHARED_DEATH)


def is_node_death(words: str | None) -> bool:
    """Tell whether a process ended because its node did."""
    return words is not None and words.startswith(NODE_DEATH)


def is_superseded(words: str | None) -> bool:
    """Tell whether a driver ended because its experiment has another driver by now."""
    return words is not None and words.startswith(SUPERSEDED)
