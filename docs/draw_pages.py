"""Draw the pictures of docs/pages.md: a real service, real trainings, and Chromium.

`python docs/draw_pages.py` starts a service with a token in a new folder, posts the quickstart, a
search in which trials also fail and a reproduction, waits for all (about four minutes on two
cores), and writes docs/pages/NAME.png. With `--url` it photographs a service that has done so
before.
"""

from __future__ import annotations

import argparse
import io
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chromium import open_chromium, set_view
from PIL import Image
from rich.console import Console
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from eigensweep.client import Client
from eigensweep.command.quickstart import running_service

FOLDER = Path(__file__).parent / "pages"
PLUGINS = Path(__file__).parents[1] / "tests" / "plugins"
"""A package whose model `toy_bug` raises an error, so that there is a failure to show."""
WIDE, NARROW = 1180, 390
FIGURE = "nnrnn/figure-1c"
"""The reproduction that is shown: an analysis of matrices, which takes a minute."""
LARGEST_BYTES = 150_000
SECONDS_TO_DRAW = 6
LONGEST_WAIT = 3600.0
"""Seconds that the trainings may take."""
LONGEST = 2700
"""Pixels of a page that a picture shows."""
SEARCH: dict[str, Any] = {
    "name": "memory over twenty steps",
    "description": "Random search over two optimizers, three seeds each; one arm has a bug.",
    "task": {
        "name": "copying",
        "delay": 20,
        "symbols": 5,
        "batch_size": 20,
        "train_size": None,
        "valid_size": 200,
        "test_size": 200,
    },
    "arms": [
        {
            "model": {"name": "scornn", "hidden_size": 40},
            "space": {
                "model.negative_ones": [0, 10, 20, 30, 50],
                "optimizer.lr_orth": {"low": 1e-5, "high": 1e-2, "log": True},
            },
        },
        {
            "model": {"name": "lstm", "hidden_size": 20},
            "space": {"model.forget_bias": {"low": -2.0, "high": 4.0}},
        },
        {"model": {"name": "tanh_rnn", "hidden_size": 40}},
        {"model": {"name": "toy_bug", "hidden_size": 40}},
    ],
    "training": {"steps": 300, "evaluate_every": 20},
    "replicates": 3,
    "search": {
        "method": "random",
        "trials": 32,
        "space": {
            "optimizer.name": ["adam", "rmsprop"],
            "optimizer.lr": {"low": 1e-4, "high": 100.0, "log": True},
        },
    },
    "published": [
        {"metric": "baseline", "value": 0.3466, "note": "5 ln 8 / 30"},
        {
            "model": "scoRNN",
            "arm": "scornn",
            "metric": "test/cross_entropy",
            "value": 0.0,
            "note": "solved, figure 1",
        },
        {"model": "LSTM", "metric": "test/cross_entropy", "value": 0.35},
    ],
}


@contextmanager
def lend_browser(url: str, width: int, scheme: str = "light") -> Iterator[webdriver.Chrome]:
    """Lend a browser of a width that has signed in, if the service asks for a token."""
    with open_chromium() as driver:
        driver.width, driver.scheme = width, scheme
        driver.get(url)
        for field in driver.find_elements(By.ID, "token"):
            field.send_keys(os.environ["EIGENSWEEP_TOKEN"], Keys.ENTER)
            WebDriverWait(driver, 60).until(lambda it: it.find_elements(By.CSS_SELECTOR, "nav"))
        yield driver


def photograph(
    driver: webdriver.Chrome, address: str, name: str, shown: str = "h1", act: str = ""
) -> None:
    """Write the picture of a page once an element is shown, after a script has acted on it."""
    set_view(driver, driver.width, 900, driver.scheme)
    driver.get(address)
    if act:
        time.sleep(SECONDS_TO_DRAW)
        driver.execute_script(act)
    WebDriverWait(driver, 120).until(lambda it: it.find_elements(By.CSS_SELECTOR, shown))
    time.sleep(SECONDS_TO_DRAW)
    height = driver.execute_script("return document.documentElement.scrollHeight")
    set_view(driver, driver.width, min(height, LONGEST), driver.scheme)
    time.sleep(2)
    shot = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    path = FOLDER / f"{name}.png"
    for colours in (256, 128, 64):
        shot.quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size <= LARGEST_BYTES:
            return
    raise RuntimeError(f"{path} has {path.stat().st_size} bytes, over {LARGEST_BYTES}")


def photograph_all(client: Client) -> None:
    """Write all pictures of a service that holds both experiments."""
    listed = client.get("/v1/experiments", limit=100)["items"]
    ids = {each["name"]: each["id"] for each in reversed(listed)}
    quick, search = (f"{client.url}/experiments/{ids[n]}" for n in ("quickstart", SEARCH["name"]))
    trials = client.get(f"/v1/experiments/{ids[SEARCH['name']]}/trials", sort="value")["items"]
    arms = "&".join(f"of={ids[SEARCH['name']]}/{arm}" for arm in ("scornn", "lstm", "tanh_rnn"))
    (report,) = client.get("/v1/reproductions", name=FIGURE, state="finished")["items"]
    preview = "document.getElementById('preview').click()"
    mistake = (
        "const t = document.getElementById('spec');"
        "t.value = t.value.replace('negative_fraction', 'negative_fractoin'); " + preview
    )
    FOLDER.mkdir(exist_ok=True)
    with lend_browser(client.url, WIDE) as driver:
        photograph(driver, client.url, "experiments")
        photograph(driver, search, "search", "#importance:not([hidden]) path")
        photograph(
            driver, f"{search}/trials/{trials[0]['number']}", "trial", "#curves path.js-line"
        )
        photograph(driver, f"{search}/trials?state=diverged", "trials")
        photograph(driver, f"{client.url}/compare?{arms}", "compare")
        photograph(driver, f"{client.url}/new", "new", "#result dl", preview)
        photograph(driver, f"{client.url}/new", "new-refused", ".problem", mistake)
        photograph(driver, f"{client.url}/reproductions", "reproductions")
        photograph(driver, f"{client.url}{report['links']['page']}", "reproduction", "#report img")
        for button in driver.find_elements(By.CSS_SELECTOR, "header form button"):
            button.click()
            photograph(driver, f"{client.url}/session", "signed-out", "#token")
    with lend_browser(client.url, WIDE, "dark") as driver:
        photograph(driver, quick, "dark", "#curves path.js-line")
    with lend_browser(client.url, NARROW) as driver:
        photograph(driver, quick, "phone", "#curves path.js-line")


def main() -> None:
    """Post, wait and photograph."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running service that has both experiments")
    given = parser.parse_args()
    if given.url:
        with Client(given.url) as client:
            photograph_all(client)
        return
    os.environ["EIGENSWEEP_TOKEN"] = secrets.token_urlsafe()
    os.environ["PYTHONPATH"] = f"{PLUGINS}:{os.environ.get('PYTHONPATH', '')}"
    with (
        tempfile.TemporaryDirectory(prefix="eigensweep-pages-") as folder,
        running_service(Path(folder), Console()) as client,
    ):
        asked = client.submit("quickstart"), client.submit(SEARCH), client.reproduce(FIGURE)
        for each in asked:
            each.wait(LONGEST_WAIT)
        photograph_all(client)


if __name__ == "__main__":
    main()
