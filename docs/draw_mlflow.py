"""Draw the pictures of docs/how-to/mlflow.md: MLflow's pages of a finished experiment, in Chromium.

`eigensweep submit docs/mlflow/sweep.yaml --follow` trains it (four minutes on two cores);
`python docs/draw_mlflow.py EXPERIMENT` then opens the links that the service gives, as a person
does, and writes docs/mlflow/NAME.png. It needs Chromium and its driver.
"""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

from chromium import open_chromium, set_view
from PIL import Image
from selenium import webdriver

from eigensweep import Client

FOLDER = Path(__file__).parent / "mlflow"
SECONDS = 45
"""How long a page may take to ask for its curves and to draw them."""


def photograph(browser: webdriver.Chrome, address: str, name: str) -> None:
    """Open an address in a new page and save what is seen there, in 128 colours."""
    browser.get("about:blank")
    browser.get(address)
    time.sleep(SECONDS)
    picture = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    picture.quantize(128).save(FOLDER / f"{name}.png", optimize=True)


def main(experiment_id: str) -> None:
    """Photograph the chart, the table, a trial's run and the report."""
    with Client() as client:
        content = client.experiment(experiment_id).content
    links, best = content["links"], content["best"]["links"]
    run, _, mode = links["run"].partition("?")
    with open_chromium() as browser:
        set_view(browser, 1400, 1000)
        photograph(browser, links["mlflow"], "chart")
        photograph(browser, links["mlflow"].replace("&compareRunsMode=CHART", ""), "table")
        photograph(browser, best["mlflow"], "trial")
        photograph(browser, f"{run}/artifacts/report/report.md?{mode}", "report")
        photograph(browser, f"{run}/artifacts/report/parallel-lstm.png?{mode}", "search-plot")


if __name__ == "__main__":
    main(sys.argv[1])
