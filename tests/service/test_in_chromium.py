"""The pages in a real Chromium: plots, live parts, buttons, keyboard, phone, dark, sign-in."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from played import complete, play
from pydantic import SecretStr
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select
from test_race import Race
from waiting import wait_until

from eigensweep.service.api.app import create_app

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
FROM_PLOTLY = "Applying inline style"
"""Plotly styles powers of ten and a map that no page has; without these styles all is in place."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    programs = shutil.which("chromium"), shutil.which("chromedriver")
    if None in programs:
        pytest.skip("install chromium and chromium-driver (on PATH) to run this")
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.binary_location = str(programs[0])
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(programs[1]))
    yield driver
    driver.quit()


@pytest.fixture
def serve(settings, record, dispatcher) -> Iterator[Callable[..., str]]:
    """Return what serves the application and returns its address."""
    servers: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(token: str | None = None) -> str:
        own = settings.model_copy(update={"token": SecretStr(token) if token else None})
        app = create_app(own, record, dispatcher)
        listening = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield start
    for server, thread in servers:
        server.should_exit = True
        thread.join()


@pytest.fixture
def ledger(client, record, settings) -> Any:
    return play(client, record, Path(settings.storage_folder))


def find(browser: webdriver.Chrome, selector: str) -> Any:
    """Return the first element, once there is one."""
    return wait_until(lambda: browser.find_elements(By.CSS_SELECTOR, selector), lambda: selector)[0]


def text_of(browser: webdriver.Chrome, selector: str) -> str:
    return find(browser, selector).get_attribute("textContent")


def complain(browser: webdriver.Chrome, address: str) -> list[str]:
    """Return what the console holds of a service's pages, besides what plotly causes."""
    told = [each["message"] for each in browser.get_log("browser") if each["level"] == "SEVERE"]
    return [text for text in told if text.startswith(address) and FROM_PLOTLY not in text]


def emulate(browser: webdriver.Chrome, width: int, scheme: str) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def test_an_experiment_is_drawn_renewed_and_cancelled(browser, serve, ledger, settings, record):
    emulate(browser, 1200, "light")
    here = f"{serve()}/experiments/{ledger.experiment_id}"
    browser.get(here)
    find(browser, "#curves .scatterlayer .trace path.js-line")
    assert "memoryless baseline" in text_of(browser, "#curves .drawing")
    assert "scornn, trial 0" in text_of(browser, "#curves details")  # the same as a table
    find(browser, "#parallel .scatterlayer path.js-line")
    find(browser, "#slices .scatterlayer .point")
    assert browser.title.startswith("who <script>alert(1)</script>")
    assert not complain(browser, here)

    complete(ledger, Path(settings.storage_folder), 8, "lstm", 0.01)
    wait_until(lambda: "8 of 8 trials" in text_of(browser, "#state"))
    wait_until(lambda: "lstm, trial 8" in text_of(browser, "#curves details"))

    find(browser, "button[data-post]").click()
    browser.switch_to.alert.accept()
    wait_until(lambda: "is being cancelled" in text_of(browser, "#state"))
    assert record.row(ledger.experiment_id).intent == "cancel"


def test_a_trial_shows_each_metric(browser, serve, ledger):
    here = f"{serve()}/experiments/{ledger.experiment_id}/trials/0"
    browser.get(here)
    find(browser, "#curves .scatterlayer .trace path.js-line")
    choices = Select(find(browser, "#metric"))
    assert choices.first_selected_option.text == "valid/cross entropy"
    assert len(browser.find_elements(By.CSS_SELECTOR, "#curves .scatterlayer .trace")) == 2
    assert not complain(browser, here)


def test_a_spec_is_previewed_refused_at_its_line_and_posted(browser, serve, record):
    browser.get(f"{serve()}/new?preset=quickstart")
    find(browser, "#preview").click()
    wait_until(lambda: "trials9" in text_of(browser, "#result"))
    assert "core hours" in text_of(browser, "#result")
    browser.execute_script(
        "const t = document.getElementById('spec');"
        "t.value = t.value.replace('negative_fraction', 'negative_fractoin')"
    )
    find(browser, "#post").click()
    wait_until(lambda: "negative_fractoin" in text_of(browser, "#problems"))
    assert "did you mean" in text_of(browser, "#problems")
    find(browser, "#problems button").click()
    chosen = browser.execute_script(
        "const t = document.activeElement;return t.value.slice(t.selectionStart, t.selectionEnd)"
    )
    assert "negative_fractoin" in chosen
    browser.execute_script(
        "const t = document.getElementById('spec');"
        "t.value = t.value.replace('fractoin', 'fraction')"
    )
    find(browser, "#post").click()
    wait_until(lambda: "/experiments/" in browser.current_url)
    assert [each.experiment.name for each in record.experiments()] == ["quickstart"]


def test_the_keyboard_reaches_the_content_first_and_focus_is_seen(browser, serve, ledger):
    browser.get(serve())
    find(browser, "body").send_keys(Keys.TAB)
    first = browser.switch_to.active_element
    assert first.text == "Skip to the content"
    outline = first.value_of_css_property("outline-style")
    assert outline == "solid"
    first.send_keys(Keys.ENTER)
    assert browser.switch_to.active_element.get_attribute("id") == "main"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_one_way_and_words_stand_out(browser, serve, ledger, scheme):
    emulate(browser, 360, scheme)
    address = serve()
    here = f"/experiments/{ledger.experiment_id}"
    for path in ("/", here, f"{here}/trials", f"{here}/trials/0", "/compare", "/new"):
        browser.get(address + path)
        time.sleep(0.3)
        widths = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
        assert widths[0] <= widths[1], path
        unnamed = browser.execute_script(
            "return [...document.querySelectorAll('input:not([type=hidden]), select, textarea')]"
            ".filter(e => !e.labels.length && !e.ariaLabel).map(e => e.outerHTML)"
        )
        assert unnamed == [], path
        assert browser.execute_script("return document.querySelectorAll('h1').length") == 1
        headless = "[...document.querySelectorAll('table')].filter(t => !t.querySelector('th'))"
        assert browser.execute_script(f"return {headless}.length") == 0
        assert browser.execute_script(CONTRAST) == [], path


CONTRAST = """
const channel = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const shares = [0.2126, 0.7152, 0.0722];
const light = (rgb) => shares.reduce((sum, share, i) => sum + share * channel(rgb[i]), 0);
const read = (text) => text.match(/[\\d.]+/g).map(Number);
const ground = (e) => {
  for (; e; e = e.parentElement) {
    const found = read(getComputedStyle(e).backgroundColor);
    if (found.length === 3) return found;
  }
  return [255, 255, 255];
};
const low = [];
for (const e of document.querySelectorAll('main *, header *')) {
  const hasText = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
  if (e.closest('svg, option') || !hasText) continue;
  const [a, b] = [light(read(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) low.push(e.outerHTML.slice(0, 120));
}
return low;
"""
"""The elements whose text has less contrast than 4.5 to 1. Source: WCAG 2.2, criterion 1.4.3."""


def test_a_browser_signs_in_and_comes_back(browser, serve, ledger):
    address = serve(token="let-me-in")
    browser.get(f"{address}/new?preset=quickstart")
    find(browser, "#token").send_keys("let-me-in", Keys.ENTER)
    wait_until(lambda: browser.find_elements(By.ID, "spec"))
    assert browser.current_url.endswith("/new?preset=quickstart")
    assert not [text for text in complain(browser, address) if "401" not in text]

    find(browser, "header form button").click()
    wait_until(lambda: "You are signed out." in text_of(browser, "main"))
    assert browser.get_cookies() == []
    browser.back()
    find(browser, "#token")
    browser.get(f"{address}/new")
    find(browser, "#token")


def test_a_race_is_a_table_of_who_is_behind_the_leader(browser, serve, client, record):
    race = Race(client, record)
    race.widen(0, 4)
    race.reopen(1, 4)
    browser.get(f"{serve()}/experiments/{race.id}")
    table = "#race table tbody tr"
    rows = wait_until(lambda: browser.find_elements(By.CSS_SELECTOR, table), pause=0.05)
    assert [row.text.split()[0] for row in rows] == ["0", "1"]
    assert "leads" in rows[0].text
    words = browser.find_element(By.ID, "race-words").text
    assert words.startswith("running: trial 0 leads with 3 seeds and is not distinguishable from")
