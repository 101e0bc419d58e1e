"""Chromium as the tests and the pictures of the pages use it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--hide-scrollbars",
)


def is_installed() -> bool:
    """Return whether there are Chromium and its driver."""
    return None not in (shutil.which("chromium"), shutil.which("chromedriver"))


@contextmanager
def open_chromium() -> Iterator[webdriver.Chrome]:
    """Lend a browser with a profile of its own, which keeps what the console says."""
    options = webdriver.ChromeOptions()
    with tempfile.TemporaryDirectory(prefix="eigensweep-chromium-") as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.binary_location = shutil.which("chromium") or ""
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
        try:
            yield driver
        finally:
            driver.quit()


def set_view(driver: webdriver.Chrome, width: int, height: int, scheme: str = "light") -> None:
    """Show pages in a size in pixels, `light` or `dark`; narrow ones are a phone's."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
