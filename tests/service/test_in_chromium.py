"""The pages in a real Chromium: plots, live parts, buttons, keyboard, phone, dark, sign-in."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from chromium import is_installed, open_chromium, set_view
from helpers.played import PLACE, SPEC, complete, open_trial, play, seed_result
from helpers.reproduced import NAME, Reproducer, play_driver
from helpers.waiting import wait_until
from pydantic import SecretStr
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select
from starlette.testclient import TestClient
from test_race import Race

from eigensweep.results.seeds import summarise
from eigensweep.search_spaces.labels import describe_settings
from eigensweep.service.api.app import create_app
from eigensweep.service.api.pages.formats import show_number
from eigensweep.service.record.ledger import RecordLedger


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    if not is_installed():
        pytest.skip("install chromium and chromium-driver (on PATH) to run this")
    with open_chromium() as driver:
        yield driver


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
        start.app = app  # type: ignore[attr-defined]
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
    """Return the text of the first element, once there is one; a page may renew it meanwhile."""
    script = "return document.querySelector(arguments[0])?.textContent"
    wait_until(lambda: browser.execute_script(script, selector) is not None, lambda: selector)
    found: str | None = browser.execute_script(script, selector)
    return found or ""


def click(browser: webdriver.Chrome, selector: str) -> None:
    """Click on the first element, also where the page renews it at that moment."""

    def has_clicked() -> bool:
        try:
            find(browser, selector).click()
        except StaleElementReferenceException:
            return False
        return True

    wait_until(has_clicked)


def press(browser: webdriver.Chrome, selector: str) -> None:
    """Press Enter on the first element: a mouse misses what plots move while they are drawn."""
    find(browser, selector).send_keys(Keys.ENTER)


def complain(browser: webdriver.Chrome, address: str) -> list[str]:
    """Return what the console holds of a service's pages."""
    told = [each["message"] for each in browser.get_log("browser") if each["level"] == "SEVERE"]
    return [text for text in told if text.startswith(address)]


def emulate(browser: webdriver.Chrome, width: int, scheme: str) -> None:
    set_view(browser, width, 800, scheme)


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

    click(browser, "button[data-post$='/cancel']")
    browser.switch_to.alert.accept()
    wait_until(lambda: "cancelling" in text_of(browser, "#state"))
    assert ledger.intent() == "cancel"


@pytest.fixture
def finished(ledger, settings) -> Any:
    """An experiment that is over: five trials of each arm, those of one arm larger and better."""
    for number in range(8, 16):
        arm, size = (("scornn", 90), ("lstm", 400))[number % 2]
        value = 0.05 + 0.001 * number - 0.03 * (arm == "lstm")
        complete(ledger, Path(settings.storage_folder), number, arm, value, free=size)
    ledger.end("completed")
    return ledger


def test_below_importance_stands_which_arms_it_lacks(browser, serve, ledger, settings):
    for number in (10, 11):
        complete(ledger, Path(settings.storage_folder), number, "scornn", 0.01 * number)
    ledger.end("completed")
    browser.get(f"{serve()}/experiments/{ledger.experiment_id}")
    find(browser, "#importance:not([hidden]) .drawing .bars path")
    words = "Not drawn: optimizer.lr of lstm: 2 finished trials have it; 4 are needed."
    assert text_of(browser, "#importance-left-out") == words


def test_a_finished_one_shows_importance_front_and_comparisons(browser, serve, finished):
    emulate(browser, 1200, "light")
    here = f"{serve()}/experiments/{finished.experiment_id}"
    browser.get(here)
    find(browser, "#importance:not([hidden]) .drawing .bars path")
    importance = text_of(browser, "#importance details")
    assert "scornnoptimizer.lr" in importance
    assert "lstmoptimizer.lr" in importance
    find(browser, "#front:not([hidden]) table")
    front = [row.text for row in browser.find_elements(By.CSS_SELECTOR, "#front tbody tr")]
    assert [row.split()[1] for row in front] == ["lstm", "scornn"]  # the better, the smaller
    assert "beaten by one of these" in text_of(browser, "#front-words")
    assert not complain(browser, here)

    browser.find_element(By.LINK_TEXT, "Compare the arms, seed by seed").click()
    wait_until(lambda: "/compare?of=" in browser.current_url)
    assert [e.text for e in browser.find_elements(By.TAG_NAME, "h1")] == ["Comparison"]
    words = text_of(browser, "main ul")
    assert f"{finished.experiment_id}/lstm" in words
    assert f"{finished.experiment_id}/scornn" in words

    browser.get(f"{here}/trials")
    for box in browser.find_elements(By.CSS_SELECTOR, "#trials input[type=checkbox]")[:3]:
        box.click()
    find(browser, "#trials form button").click()
    wait_until(lambda: "/compare?of=" in browser.current_url)
    pairs = browser.find_elements(By.CSS_SELECTOR, "table:last-of-type th[scope=rowgroup]")
    assert len([pair for pair in pairs if "\n" in pair.text]) >= 3


def test_a_reproduction_is_posted_watched_and_read(browser, serve, record, settings):
    emulate(browser, 1200, "light")
    address = serve()
    browser.get(f"{address}/reproductions")
    assert "LDC93S1" in text_of(browser, "#suites")
    find(browser, f"button[data-body*='{NAME}'][data-body*='short']").click()
    wait_until(lambda: "/reproductions/" in browser.current_url)
    find(browser, "#state .badge.running")
    (id,) = [each.experiment.id for each in record.experiments()]
    find(browser, f"#runs a[href='/experiments/{id}']")

    play_driver(record, settings.storage_folder, id)
    Reproducer(serve.app).tick()

    find(browser, "#report .badge")
    assert "256 comes below half of the baseline before 128" in text_of(browser, "#report")
    picture = "return document.querySelector('#report img').naturalWidth"
    wait_until(lambda: browser.execute_script(picture) > 100)
    wait_until(lambda: not browser.find_elements(By.CSS_SELECTOR, "#state progress"))
    assert not complain(browser, address)


Y_TYPE = "return document.querySelector(arguments[0] + ' .drawing')._fullLayout.yaxis.type"


def points_of(browser: webdriver.Chrome, figure: str) -> list[dict[str, Any]]:
    """Return what a figure draws: x, y and line of each trace."""
    find(browser, f"{figure} .drawing .plotly, {figure} .drawing.js-plotly-plot")
    script = (
        "return document.querySelector(arguments[0] + ' .drawing').data"
        ".map(({x, y, line, name, marker}) => ({x: [...x], y: [...y], line, name, marker}))"
    )
    found: list[dict[str, Any]] = browser.execute_script(script, figure)
    return found


@pytest.mark.slow
def test_an_exact_zero_leaves_the_axis_logarithmic(browser, serve, ledger, settings):
    complete(ledger, Path(settings.storage_folder), 8, "lstm", 0.01, ends_at=0.0)
    browser.get(f"{serve()}/experiments/{ledger.experiment_id}")
    wait_until(lambda: "lstm, trial 8" in text_of(browser, "#curves details"))
    assert browser.execute_script(Y_TYPE, "#curves") == "log"
    assert "exactly 0" in find(browser, "#curves-zeros").text
    lowest = min(y for trace in points_of(browser, "#curves") for y in trace["y"])
    assert lowest > 0


@pytest.mark.slow
def test_the_solid_line_of_an_arm_is_its_best_so_far(browser, serve, ledger, settings):
    open_trial(ledger, 8, "lstm", 1e-3)
    attempt = ledger.begin(8)
    ledger.report(8, attempt, 50, {"valid/cross_entropy": 0.02, "objective": 0.02}, PLACE)
    browser.get(f"{serve()}/experiments/{ledger.experiment_id}")
    wait_until(lambda: "lstm, trial 8" in text_of(browser, "#curves details"))
    (solid,) = [
        trace["y"]
        for trace in points_of(browser, "#curves")
        if trace["name"] == "lstm" and trace["line"].get("dash") == "solid"
    ]
    assert solid == [0.02]  # trial 8 trains, and is ahead of those that have ended
    assert "0.02" in text_of(browser, "#trials")


@pytest.mark.slow
def test_without_a_conditional_setting_a_line_reaches_the_end(browser, serve, client, record):
    spec = {
        **SPEC,
        "search": {
            "method": "random",
            "trials": 4,
            "space": {
                "optimizer.name": ["adam", "rmsprop"],
                "optimizer.alpha": {"low": 0.5, "high": 0.9, "when": {"optimizer.name": "rmsprop"}},
            },
        },
    }
    id = client.post("/v1/experiments", json=spec).json()["id"]
    ledger = RecordLedger(record.url, id, record.claim(id).generation)
    chosen = [{"optimizer.name": "adam"}]
    chosen += [{"optimizer.name": "rmsprop", "optimizer.alpha": alpha} for alpha in (0.5, 0.9)]
    for number, params in enumerate(chosen):
        ledger.open(number, "scornn", params, {}, f"h{number}")
        result = summarise([seed_result(0, 0.1 * (number + 1), "completed")])
        ledger.finish(number, ledger.begin(number), "completed", result)
    browser.get(f"{serve()}/experiments/{id}")
    find(browser, "#parallel:not([hidden]) .scatterlayer path.js-line")
    best = points_of(browser, "#parallel")[-1]
    assert best["x"][:3] == [0, 1, 2]  # optimizer, alpha, cross entropy
    assert best["y"][1] < 0 <= best["y"][2]  # below the axis of alpha, and on that of the metric
    assert "not set" in text_of(browser, "#parallel .drawing")


@pytest.mark.slow
def test_a_setting_with_one_value_has_one_mark(browser, serve, ledger, settings):
    ledger.open(8, "lstm", {"optimizer.lr": 1e-3, "model.forget_bias": 2.5}, {}, "h8")
    result = summarise([seed_result(0, 0.05, "completed")])
    ledger.finish(8, ledger.begin(8), "completed", result)
    browser.get(f"{serve()}/experiments/{ledger.experiment_id}")
    find(browser, "#parallel:not([hidden]) .scatterlayer path.js-line")
    marks = "return document.querySelector('#parallel .drawing').layout.annotations"
    found = browser.execute_script(f"{marks}.map(({{x, text}}) => [x, text])")
    assert [text for x, text in found if x == 1] == ["2.5", "not set"]


@pytest.mark.slow
def test_a_setting_of_zero_is_drawn_on_a_logarithmic_axis(browser, serve, client, record):
    decays = [0, 1e-5, 1e-3]
    search = {"method": "grid", "space": {"optimizer.weight_decay": decays}}
    id = client.post("/v1/experiments", json={**SPEC, "search": search}).json()["id"]
    ledger = RecordLedger(record.url, id, record.claim(id).generation)
    for number, decay in enumerate(decays):
        ledger.open(number, "scornn", {"optimizer.weight_decay": decay}, {}, f"h{number}")
        result = summarise([seed_result(0, 0.1 * (number + 1), "completed")])
        ledger.finish(number, ledger.begin(number), "completed", result)
    browser.get(f"{serve()}/experiments/{id}")
    wait_until(
        lambda: len(browser.find_elements(By.CSS_SELECTOR, "#slices .scatterlayer .point")) == 3
    )
    marks = "return document.querySelector('#parallel .drawing').layout.annotations"
    wait_until(lambda: browser.find_elements(By.CSS_SELECTOR, "#parallel path.js-line"))
    found = browser.execute_script(f"{marks}.map(({{x, text}}) => [x, text])")
    assert next(text for x, text in found if x == 0) == "0"


def test_a_click_into_a_table_keeps_nothing_old(browser, serve, ledger, settings):
    emulate(browser, 1200, "light")
    browser.get(f"{serve()}/experiments/{ledger.experiment_id}")
    find(browser, "#curves .scatterlayer .trace path.js-line")
    browser.execute_script(
        "document.querySelector('#arms [tabindex]').focus();"
        "document.querySelector('#trials input[name=of]').click()"
    )
    ticked = "return [...document.querySelectorAll('#trials input:checked')].map((e) => e.value)"
    (chosen,) = browser.execute_script(ticked)
    complete(ledger, Path(settings.storage_folder), 8, "lstm", 0.001, apart=(0.0, 0.0))
    wait_until(lambda: "0.001" in text_of(browser, "#arms"))
    assert browser.execute_script("return document.activeElement.closest('#arms') !== null")
    wait_until(lambda: "0.001" in text_of(browser, "#trials"))
    assert browser.execute_script(ticked) == [chosen]

    browser.execute_script("document.querySelector('#trials a').focus()")  # that part waits
    complete(ledger, Path(settings.storage_folder), 9, "lstm", 0.0005, apart=(0.0, 0.0))
    ledger.end("completed")
    ledger.set_tracked()
    wait_until(lambda: "completed" in text_of(browser, "#state"))
    assert "0.0005" not in text_of(browser, "#trials")
    browser.execute_script("document.activeElement.blur()")
    wait_until(lambda: "0.0005" in text_of(browser, "#trials"))
    wait_until(lambda: "It is over." in text_of(browser, "#announcement"))


@pytest.mark.slow
def test_a_ticked_trial_stays_when_better_ones_push_it_out(browser, serve, ledger, settings):
    browser.get(f"{serve()}/experiments/{ledger.experiment_id}")
    ticked = "return [...document.querySelectorAll('#trials input:checked')].map((e) => e.value)"
    find(browser, "#trials input[name=of]")
    browser.execute_script(
        "[...document.querySelectorAll('#trials input[name=of]')].at(-1).click()"
    )
    chosen = browser.execute_script(ticked)
    for number in range(8, 30):
        complete(ledger, Path(settings.storage_folder), number, "lstm", 0.001, points=2)
    wait_until(lambda: text_of(browser, "#trials").count("lr=") == 21)
    assert browser.execute_script(ticked) == chosen
    assert chosen[0] == browser.execute_script(
        "return [...document.querySelectorAll('#trials input[name=of]')].at(-1).value"
    )


@pytest.mark.slow
def test_a_page_of_a_deleted_experiment_says_so(browser, serve, ledger, record):
    browser.get(f"{serve()}/experiments/{ledger.experiment_id}")
    find(browser, "#curves .scatterlayer .trace path.js-line")
    record.cancel(ledger.experiment_id)
    ledger.end("cancelled")
    record.delete(ledger.experiment_id)
    record.remove(ledger.experiment_id)
    wait_until(lambda: "there is no experiment" in text_of(browser, "main"))


@pytest.mark.slow
def test_curves_that_fail_hide_nothing_else(browser, serve, finished, monkeypatch):
    address = serve()
    browser.get(f"{address}/experiments/{finished.experiment_id}")
    find(browser, "#curves .scatterlayer .trace path.js-line")
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/curves"]})
    try:
        browser.refresh()
        find(browser, "#importance .bars path")
        assert not browser.find_elements(By.CSS_SELECTOR, "#curves .scatterlayer")
        assert "No other trial is better" in text_of(browser, "#front")
    finally:
        browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})


def test_a_trial_shows_each_metric(browser, serve, ledger):
    here = f"{serve()}/experiments/{ledger.experiment_id}/trials/0"
    browser.get(here)
    find(browser, "#curves .scatterlayer .trace path.js-line")
    choices = Select(find(browser, "#metric"))
    assert choices.first_selected_option.text == "valid/cross entropy"
    assert len(browser.find_elements(By.CSS_SELECTOR, "#curves .scatterlayer .trace")) == 2
    assert not complain(browser, here)


@pytest.mark.slow
def test_a_wide_band_leaves_the_curves_their_height(browser, serve, client, record, settings):
    id = client.post("/v1/experiments", json=SPEC).json()["id"]
    ledger = RecordLedger(record.url, id, record.claim(id).generation)
    complete(ledger, Path(settings.storage_folder), 0, "lstm", 0.1, apart=(0.0, 0.5, 1.0))
    browser.get(f"{serve()}/experiments/{id}")
    find(browser, "#curves .scatterlayer path.js-line")
    shown = "const { data, layout } = document.querySelector('#curves .drawing');"
    script = f"{shown} return [layout.yaxis.range, data.map(({{ y }}) => Math.max(...y))]"
    (low, high), (_, band, line) = browser.execute_script(script)
    assert line == pytest.approx(1.6)
    assert band > 2 * high
    assert high == pytest.approx(1.6, rel=0.1)
    assert low > 0


def test_a_spec_is_previewed_refused_at_its_line_and_posted(browser, serve, record):
    browser.get(f"{serve()}/new?preset=quickstart")
    find(browser, "#preview").click()
    wait_until(lambda: "trials9" in text_of(browser, "#result"))
    assert "core hours" in text_of(browser, "#result")
    assert "First trials" in text_of(browser, "#result")
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


def test_a_preview_of_tpe_says_what_it_does_and_no_trials(browser, serve):
    browser.get(f"{serve()}/new")
    arms = [{"model": {"name": name, "hidden_size": 4}} for name in ("lstm", "gru")]
    rates = {"low": 1e-4, "high": 1e-1, "log": True}
    search = {"method": "tpe", "trials": 9, "space": {"optimizer.lr": rates}}
    content = {"task": {"name": "copying", "delay": 9}, "arms": arms, "training": {"steps": 9}}
    text = json.dumps({**content, "search": search})
    browser.execute_script("document.getElementById('spec').value = arguments[0]", text)
    find(browser, "#preview").click()
    wait_until(lambda: "tpe chooses each trial's arm, too" in text_of(browser, "#result"))
    assert "One end of each arm" in text_of(browser, "#result")
    assert "First trials" not in text_of(browser, "#result")


REACHABLE = """
const wanted = "a[href], button:not(:disabled), input:not([type=hidden]), select, textarea, summary"
  + ", [tabindex='0']";
const all = [...document.querySelectorAll(wanted)];
return all.filter(e => e.checkVisibility({visibilityProperty: true}));
"""
"""The elements of a page that a person with a mouse can use."""
NOTE_FOCUS = """
document.activeElement.blur();
window.focused = [];
addEventListener("focusin", ({target}) =>
  window.focused.push([target, target.tagName, getComputedStyle(target).outlineStyle]));
"""
"""From here on, keep what gets the focus, and how that is shown."""


def test_the_keyboard_reaches_everything_and_focus_is_seen(browser, serve, finished):
    emulate(browser, 1200, "light")
    address = serve()
    here = f"/experiments/{finished.experiment_id}"
    browser.get(address + here)
    find(browser, "#importance:not([hidden]) .drawing .bars path")
    for path in (here, f"{here}/trials/0", "/new", "/reproductions"):
        if not browser.current_url.endswith(path):
            browser.get(address + path)
        # Where the window has lost its focus to another one, a page shows none at all.
        browser.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
        wanted = browser.execute_script(REACHABLE)
        browser.execute_script(NOTE_FOCUS)
        for _ in range(2):  # the second time for what came with a plot and took a key of the first
            ActionChains(browser).send_keys(Keys.TAB * (len(wanted) + 3)).perform()
            seen = browser.execute_script("return window.focused")
            reached = [element for element, _, _ in seen]
            missed = [e.get_attribute("outerHTML")[:120] for e in wanted if e not in reached]
            if not missed:
                break
        assert missed == [], path
        unseen = [each for each in seen if each[2] not in ("solid", "auto")]
        shown = [(e.get_attribute("outerHTML")[:120], outline) for e, _, outline in unseen]
        assert {tag for _, tag, _ in unseen} <= {"TEXTAREA"}, (path, shown)


def test_the_keyboard_reaches_the_content_and_shows_its_focus(browser, serve, ledger):
    browser.get(serve())
    find(browser, "body").send_keys(Keys.TAB)
    first = browser.switch_to.active_element
    assert first.get_attribute("textContent") == "Skip to the content"
    wait_until(lambda: first.rect["y"] >= 0)  # it moves into the view
    outline = first.value_of_css_property("outline-style")
    assert outline == "solid"
    first.send_keys(Keys.ENTER)
    assert browser.switch_to.active_element.get_attribute("id") == "main"


def test_a_browser_signs_in_and_comes_back(browser, serve, ledger):
    address = serve(token="let-me-in")
    browser.get(f"{address}/new?preset=quickstart#main")
    find(browser, "#token").send_keys("mistyped", Keys.ENTER)
    wait_until(lambda: "not known" in text_of(browser, "main"))
    find(browser, "#token").send_keys("let-me-in", Keys.ENTER)
    wait_until(lambda: browser.find_elements(By.ID, "spec"))
    assert browser.current_url.endswith("/new?preset=quickstart#main")
    assert not [text for text in complain(browser, address) if "401" not in text]

    find(browser, "header form button").click()
    wait_until(lambda: "You are signed out." in text_of(browser, "main"))
    assert browser.get_cookies() == []
    browser.get(f"{address}/new")
    find(browser, "#token")


def wait_for_colour(browser: webdriver.Chrome, selector: str, name: str, is_bright: bool) -> None:
    """Wait until a colour of an element has much red, or little: it changes step by step."""

    def is_so() -> bool:
        colour = find(browser, selector).value_of_css_property(name)
        return (int(re.findall(r"\d+", colour)[0]) > 100) == is_bright

    wait_until(is_so, pause=0.05)


def test_a_link_of_another_site_finds_who_is_signed_in(browser, serve, ledger):
    address = serve(token="a token")
    browser.get(address)
    find(browser, "#token").send_keys("a token\n")
    wait_until(lambda: browser.title.startswith("Experiments"))
    for end in ("", "#trials"):
        there = f"{address}/experiments/{ledger.experiment_id}{end}"
        browser.get(f"data:text/html,<a href='{there.replace('#', '%23')}'>look</a>")
        find(browser, "a").click()
        wait_until(lambda: browser.title.startswith("who "))
        assert browser.current_url == there
    browser.delete_all_cookies()
    browser.get(f"data:text/html,<a href='{address}/new'>look</a>")
    find(browser, "a").click()
    find(browser, "#token")
    assert browser.current_url == f"{address}/new"


@pytest.mark.slow
def test_the_page_of_the_api_is_dark_and_leads_back(browser, serve, ledger):
    address = serve()
    for scheme in ("dark", "light"):
        emulate(browser, 1200, scheme)
        if scheme == "dark":
            browser.get(f"{address}/docs")  # it is built once: that takes 5 s of a processor
        find(browser, "#api .opblock-tag")
        wait_for_colour(browser, "body", "background-color", scheme == "light")
        wait_for_colour(browser, "#api .opblock-tag", "color", scheme == "dark")
    left = {each.rect["x"] for each in browser.find_elements("css selector", "#api .info p")}
    assert len(left) == 1, "paragraphs begin at one line"
    assert not complain(browser, address)
    click(browser, "header nav a")
    assert browser.current_url == f"{address}/"


def test_a_page_a_browser_kept_is_not_shown_after_signing_out(browser, serve, ledger):
    address = serve(token="let-me-in")
    browser.get(f"{address}/new?preset=quickstart")
    find(browser, "#token").send_keys("let-me-in", Keys.ENTER)
    find(browser, "#spec")
    wait_until(lambda: browser.execute_script("return document.readyState") == "complete")
    came_back = "window.dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true}))"
    browser.execute_script("document.getElementById('spec').value = 'name: typed'")
    browser.execute_async_script(
        f"{came_back}; fetch(location.href).then(() => setTimeout(arguments[0], 500))"
    )
    assert browser.execute_script("return document.getElementById('spec').value") == "name: typed"
    assert text_of(browser, "#announcement") == ""
    browser.delete_all_cookies()
    browser.execute_script(came_back)
    find(browser, "#token")


@pytest.mark.slow
def test_a_race_is_a_table_of_who_is_behind_the_leader(browser, serve, client, record):
    race = Race(client, record)
    race.widen(0, 4)
    race.reopen(1, 4)
    browser.get(f"{serve()}/experiments/{race.id}")
    table = "#race table tbody tr"
    rows = wait_until(lambda: browser.find_elements(By.CSS_SELECTOR, table), pause=0.05)
    assert [row.text.split()[0] for row in rows] == ["0", "1", "2"]
    assert "leads" in rows[0].text
    words = browser.find_element(By.ID, "race-words").text
    assert words.startswith("running: trial 0 leads with 3 seeds and is not distinguishable from")
    assert "An e-value of 40 decides" in browser.find_element(By.ID, "race-cost").text
    wait_until(lambda: browser.find_elements(By.CSS_SELECTOR, "#race path.js-line"), pause=0.05)


@pytest.mark.slow
def test_a_comparison_shows_differences_against_seeds(browser, serve, finished):
    names = [f"of={finished.experiment_id}/{arm}" for arm in ("lstm", "scornn")]
    browser.get(f"{serve()}/compare?{'&'.join(names)}&smallest=0.5")
    wait_until(lambda: browser.find_elements(By.CSS_SELECTOR, "#looks path.js-line"), pause=0.05)
    assert "to decide one of 0.5" in browser.find_element(By.TAG_NAME, "main").text


NUMBERS = [0, 3, 5924, -5924, 0.0123456, 1 / 30000, -3.2234, 12345.6, 2e-5, 1e-10, 0.5]


def test_scripts_write_numbers_and_settings_as_templates_do(browser, serve, ledger):
    browser.get(serve())
    script = (
        "const [what, each, done] = arguments;"
        "import('/static/plots.js').then((plots) => done(JSON.parse(each).map(plots[what])))"
    )
    shown = browser.execute_async_script(script, "digits", json.dumps(NUMBERS))
    assert shown == [show_number(number) for number in NUMBERS]
    chosen = [
        {"optimizer.name": "rmsprop", "optimizer.lr": 1 / 30000, "optimizer.name_orth": "adam"},
        {"task.size": 5924, "model.size": -0.25, "model.coupled": True},
        {"optimizer.betas.0": 0.9, "optimizer.betas.1": 0.999, "optimizer.lr": 0.5},
    ]
    assert browser.execute_async_script(script, "settings", json.dumps(chosen)) == [
        describe_settings(params) for params in chosen
    ]
    assert describe_settings(chosen[0]) == "optimizer=rmsprop lr=3.333e-05 optimizer_orth=adam"


def test_a_phone_folds_what_is_long_and_draws_what_is_opened(browser, serve, finished):
    emulate(browser, 390, "light")
    browser.get(f"{serve()}/experiments/{finished.experiment_id}")
    find(browser, "#curves .scatterlayer .trace path.js-line")
    folds = browser.find_elements(By.CSS_SELECTOR, "details.fold")
    opened = [fold.text.split("\n")[0] for fold in folds if fold.get_property("open")]
    assert opened == ["Results by arm", "Learning curves"]
    assert browser.execute_script("return document.documentElement.scrollHeight") < 4000
    assert not browser.find_elements(By.CSS_SELECTOR, "#parallel .scatterlayer")
    press(browser, "#space:not([hidden]) summary")
    find(browser, "#parallel .scatterlayer path.js-line")
    wide = "return document.querySelector('#parallel .main-svg').getBoundingClientRect().width"
    assert 300 < browser.execute_script(wide) <= 390


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.slow
def test_a_long_name_without_spaces_fits_its_page(browser, serve, client, spec, width):
    id = client.post("/v1/experiments", json=spec(name="x" * 120)).json()["id"]
    emulate(browser, width, "light")
    address = serve()
    for path in ("/", f"/experiments/{id}", f"/experiments/{id}/trials", "/cluster"):
        browser.get(address + path)
        find(browser, "main h1")
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width, path


def test_the_fields_are_short_on_a_phone_and_links_open_them(browser, serve):
    emulate(browser, 390, "light")
    address = serve()
    browser.get(f"{address}/fields")
    find(browser, "#task-copying")
    high = "return document.documentElement.scrollHeight"
    assert browser.execute_script(high) < 3000
    shown = "return document.querySelector(arguments[0]).checkVisibility()"
    assert not browser.execute_script(shown, "#model-scornn")
    press(browser, "a[href='#search']")
    wait_until(lambda: browser.execute_script(shown, "details:has(> summary > #search) > table"))
    browser.get(f"{address}/")
    browser.get(f"{address}/fields#model-scornn")
    wait_until(lambda: browser.execute_script(shown, "#model-scornn"))
    emulate(browser, 1200, "light")
    browser.get(f"{address}/fields")
    find(browser, "#task-copying")
    assert browser.execute_script(shown, "#model-scornn")


@pytest.mark.slow
def test_what_is_folded_stays_so_while_the_page_is_renewed(browser, serve, ledger, settings):
    emulate(browser, 1200, "light")
    browser.get(f"{serve()}/experiments/{ledger.experiment_id}")
    press(browser, "#failures summary")
    assert not find(browser, "#failures details").get_property("open")
    browser.execute_script("document.activeElement.blur()")
    complete(ledger, Path(settings.storage_folder), 8, "lstm", 0.01)
    wait_until(lambda: "8 of 8 trials" in text_of(browser, "#state"))
    assert not find(browser, "#failures details").get_property("open")


@pytest.mark.slow
def test_a_curve_that_stays_within_a_decade_has_labels(browser, serve, ledger):
    browser.get(f"{serve()}/experiments/{ledger.experiment_id}/trials/0")
    script = (
        "const done = arguments[0];"
        "import('/static/plots.js').then((plots) => done(plots.scaleOf([8.13, 8.47], true)))"
    )
    assert browser.execute_async_script(script).get("dtick") is None  # plotly's own places


def test_without_scripts_nothing_is_an_empty_hole(browser, serve, finished):
    emulate(browser, 1200, "light")
    address = serve()
    here = f"/experiments/{finished.experiment_id}"
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(address + here)
        shown = [e for e in browser.find_elements(By.CSS_SELECTOR, ".drawing") if e.is_displayed()]
        assert shown == []
        assert "curves as JSON" in browser.find_element(By.ID, "curves").text
        browser.get(f"{address}/new")
        assert not browser.find_element(By.ID, "post").is_displayed()
        assert "eigensweep submit" in browser.find_element(By.TAG_NAME, "main").text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


AXE = (Path(__file__).parents[1] / "vendor/axe-4.12.1.min.js").read_text(encoding="utf-8")
"""Finds what hinders people: contrast, names, headings, landmarks, sizes of what is touched.

Source: axe-core, https://github.com/dequelabs/axe-core, under the Mozilla Public License 2.0.
"""
RUN_AXE = """
const done = arguments[arguments.length - 1];
for (const each of document.querySelectorAll("details")) each.open = true;
const parts = {include: document, exclude: ".drawing svg"};  // a picture, with a table beside it
axe.run(parts, {resultTypes: ["violations"]}).then(
  ({violations}) => done(violations.flatMap(({id, help, nodes}) => nodes.map(
    node => `${id}: ${help}: ${node.html.slice(0, 200)}: ${node.failureSummary.slice(0, 300)}`))),
  error => done([String(error)]));
"""
LOOKS = [
    (360, "dark"),  # without the fields, the longest page by far
    pytest.param(1200, "light", marks=pytest.mark.slow),
    pytest.param(1200, "dark", marks=pytest.mark.slow),
    pytest.param(360, "light", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_axe_finds_nothing_and_no_page_scrolls_sideways(
    browser, serve, finished, client, record, settings, width, scheme
):
    emulate(browser, width, scheme)
    address = serve()
    posted = TestClient(serve.app).post("/v1/reproductions", json={"name": NAME}).json()
    here = f"/experiments/{finished.experiment_id}"
    race = Race(client, record)
    race.widen(0, 4)
    race.reopen(1, 4)
    pages = {
        "/": "#list table",
        here: "#importance:not([hidden]) .drawing",
        f"/experiments/{race.id}": "#race table tbody tr",
        f"{here}/trials": "#trials table",
        f"{here}/trials/0": "#curves path.js-line",
        f"{here}/trials/4": ".bad",
        "/compare": "form",
        f"/compare?of={finished.experiment_id}/lstm&of={finished.experiment_id}/scornn": "main ul",
        "/new": "#spec",
        **({"/fields": "#task-copying"} if (width, scheme) != LOOKS[0] else {}),
        "/cluster": "#cluster table",
        "/storage": "main table",
        "/reproductions": "#suites table",
        posted["links"]["page"]: "#runs table",
        "/experiments/none": "h1",
    }
    found = {path: look(browser, address + path, shown) for path, shown in pages.items()}
    play_driver(record, settings.storage_folder, posted["experiments"][0]["id"])
    Reproducer(serve.app).tick()
    found["report"] = look(browser, address + posted["links"]["page"], "#report table")
    browser.get(f"{address}/new")
    find(browser, "#preview").click()
    find(browser, "#result dl")
    found["preview"] = run_axe(browser)
    browser.execute_script("document.getElementById('spec').value = 'name: x'")
    find(browser, "#preview").click()
    find(browser, "#problems .problem")
    found["problems"] = run_axe(browser)
    found["sign in"] = look(browser, f"{serve(token='let-me-in')}/session", "#token")
    problems = [f"{path}: {problem}" for path, all_of in found.items() for problem in all_of]
    assert not problems, "\n".join(problems)


def look(browser: webdriver.Chrome, address: str, shown: str) -> list[str]:
    """Return what axe finds on a page once an element is shown."""
    browser.get(address)
    find(browser, shown)
    return run_axe(browser)


def run_axe(browser: webdriver.Chrome) -> list[str]:
    browser.execute_script(AXE)
    found = browser.execute_async_script(RUN_AXE)  # it opens what is folded
    page = "document.documentElement"
    wide, shown = browser.execute_script(f"return [{page}.scrollWidth, {page}.clientWidth]")
    too_wide = [f"it is {wide} pixels wide, where {shown} are shown"] if wide > shown else []
    return [*found, *too_wide]


def test_a_comparison_draws_the_best_of_so_many_trials(browser, serve, finished):
    emulate(browser, 1200, "light")
    here = f"/compare?of={finished.experiment_id}/lstm&of={finished.experiment_id}/scornn"
    address = serve()
    browser.get(address + here)
    for drawing in ("#by-trials", "#by-hours"):
        find(browser, f"{drawing} path.js-line")
        assert finished.experiment_id in text_of(browser, f"{drawing} .legend")
    assert "At 6 trials each, on test data" in text_of(browser, "#effort ul")
    assert not complain(browser, f"{address}/static/compare.js")
    browser.get(f"{address}/compare?of={finished.experiment_id}/0&of={finished.experiment_id}/1")
    find(browser, "main ul")
    assert not browser.find_elements(By.CSS_SELECTOR, "#effort")
