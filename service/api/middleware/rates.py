"""How many requests one token or address may send, and how often it may guess a token.

Runs in the service's process.
"""

from __future__ import annotations

import math
import time
from typing import Final

from limits import RateLimitItem, RateLimitItemPerMinute, parse
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from eigensweep.service.settings import OFF, Settings, is_loopback

DEFAULT: Final = "3000/minute"
"""Where other machines can reach the service: a page of MLflow alone loads a hundred files."""
FAILURES: Final = RateLimitItemPerMinute(30, namespace="failures")
"""Wrong tokens from one address, after which none is looked at for a while."""
ONCE_A_MINUTE: Final = RateLimitItemPerMinute(1, namespace="refusals")


class Rates:
    """Counts requests. On loopback nothing is limited, unless a limit was set."""

    def __init__(self, settings: Settings) -> None:
        asked = settings.rate_limit or (OFF if is_loopback(settings.host) else DEFAULT)
        self._most: RateLimitItem | None = None if asked == OFF else parse(asked)
        self._limiter = FixedWindowRateLimiter(MemoryStorage())

    def count(self, *who: str) -> int | None:
        """Count a request; return the seconds until the next one may come, None if it may now."""
        if self._most is None or self._limiter.hit(self._most, *who):
            return None
        return self._wait(self._most, *who)

    def count_failure(self, address: str) -> None:
        """Count a wrong token."""
        if self._most is not None:
            self._limiter.hit(FAILURES, address)

    def find_pause(self, address: str) -> int | None:
        """Return the seconds until an address may try a token again, None if it may now."""
        if self._most is None or self._limiter.test(FAILURES, address):
            return None
        return self._wait(FAILURES, address)

    def is_news(self, *what: str) -> bool:
        """Return whether this is told for the first time within a minute."""
        return self._limiter.hit(ONCE_A_MINUTE, *what)

    def _wait(self, item: RateLimitItem, *who: str) -> int | None:
        over_at = self._limiter.get_window_stats(item, *who).reset_time
        seconds = max(1, math.ceil(over_at - time.time()))
        if seconds > item.get_expiry() + 1:  # the clock was set back
            self._limiter.clear(item, *who)
            return None
        return seconds
