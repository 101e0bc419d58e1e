"""The pages under `/`: what they show, that they run nothing, and who gets them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.played import PLACE, SPEC, complete, open_trial, play, seed_result
from helpers.reproduced import NAME, Reproducer, play_driver
from pydantic import SecretStr
from starlette.testclient import TestClient

from eigensweep.client.answers.answers import format_experiment
from eigensweep.client.answers.trial_table import TrialTable
from eigensweep.protocol.messages import Notice, Takeover
from eigensweep.results.seeds import summarise
from eigensweep.results.trial_result import ReplicateResult, Result, Source
from eigensweep.search_spaces.shipped.presets import load_preset
from eigensweep.search_spaces.shipped.reproductions import suite_names
from eigensweep.service.api.app import create_app
from eigensweep.service.api.comparison import find_metric
from eigensweep.service.api.pages.formats import show_duration, show_number, show_percent
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.requests.analyses import AnalysisRecord
from eigensweep.store.checkpoints import Store, replicate_key
from eigensweep.store.commits.curves import CurvePoint


@pytest.fixture
def ledger(client, record, settings) -> Any:
    return play(client, record, Path(settings.storage_folder))


def read(client: TestClient, path: str, status: int = 200) -> str:
    """Return the text of a page as a person reads it."""
    answer = client.get(path, headers={"Accept": "text/html"})
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"].startswith("text/html")
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", answer.text)).split())


def test_a_wrong_path_is_a_page_for_browsers_else_json(client):
    assert "there is nothing at /nonsense" in read(client, "/nonsense", 404)
    assert client.get("/nonsense").json()["status"] == 404
    told = client.get("/v1/nonsense", headers={"Accept": "text/html"})
    assert (told.status_code, told.json()["status"]) == (404, 404)
    told = client.post("/nonsense", headers={"Accept": "text/html"})
    assert (told.status_code, told.json()["status"]) == (404, 404)


@pytest.mark.parametrize(
    "place", ["/", "/new", "/compare", "/cluster", "/reproductions", "/storage", "/docs"]
)
def test_the_navigation_marks_the_page_that_one_is_on(client, place):
    tags = Tags(client.get(place).text).found
    current = [found["href"] for name, found in tags if name == "a" and "aria-current" in found]
    assert current == [place]


@pytest.mark.parametrize(("lanes", "offered"), [(None, True), (8, False)])
def test_prints_are_offered_where_a_process_has_its_own(client, ledger, lanes, offered):
    ledger.report(7, 1, 60, {"objective": 0.1}, replace(PLACE, lanes=lanes))
    page = client.get(f"/experiments/{ledger.experiment_id}/trials/7").text
    assert ("/trials/7/logs" in page) is offered


class Tags(HTMLParser):
    """The tags of a page, with their attributes, and what stands inside of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.in_scripts = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.in_scripts += data

    def count(self, tag: str) -> int:
        return [name for name, _ in self.found].count(tag)


def pages_of(id: str) -> list[str]:
    here = f"/experiments/{id}"
    trials = [f"{here}/trials/{number}" for number in range(8)]
    compared = f"/compare?of={id}/0&of={id}/lstm"
    form = ["/new", f"/new?experiment={id}", "/fields"]
    return ["/", here, f"{here}/trials", *trials, compared, "/cluster", "/reproductions", *form]


def test_the_form_starts_from_an_experiment_again(client, ledger):
    """ "Load" sends what the form has: the experiment, and the preset that is chosen, if one is."""
    page = client.get(f"/new?experiment={ledger.experiment_id}").text
    assert f'<option value="" selected>(experiment {ledger.experiment_id})</option>' in page
    assert f'name="experiment" value="{ledger.experiment_id}"' in page
    same = client.get(f"/new?preset=&experiment={ledger.experiment_id}").text
    assert same.count("name: who") == page.count("name: who") == 1
    other = client.get(f"/new?preset=enrnn/copying&experiment={ledger.experiment_id}").text
    assert "name: who" not in other
    assert "<option selected>enrnn/copying" in other


def test_where_the_task_varies_each_trial_has_its_own_baseline(client, record, spec):
    varied = spec(search={"space": {"task.delay": [3, 30], "optimizer.lr": [0.1]}})
    id = client.post("/v1/experiments", json=varied).json()["id"]
    ledger = RecordLedger(record.url, id, record.claim(id).generation)
    for number, baseline in enumerate((0.5, 0.2)):
        open_trial(ledger, number, "scornn", 0.1)
        ended = replace(seed_result(0, 0.1, "completed"), baseline=baseline)
        ledger.finish(number, ledger.begin(number), "completed", summarise([ended]))
    here = f"/v1/experiments/{id}"
    assert client.get(here).json()["baseline"] is None
    trials = client.get(f"{here}/trials?sort=number").json()["items"]
    assert [trial["baseline"] for trial in trials] == [0.5, 0.2]
    assert client.get(f"{here}/arms").json()["items"][0]["ratio"] == pytest.approx(0.2)
    for metric in ("cross_entropy", "accuracy"):
        row = record.row(id)
        assert find_metric(row, row.spec["task"], metric)[1] is None
    page = read(client, f"/experiments/{id}/trials")
    assert "20 %" in page
    assert "50 %" in page
    assert "50 % of the baseline" in read(client, f"/experiments/{id}/trials/1")
    rows = client.get(f"{here}/trials.csv").text.splitlines()
    assert rows[0].split(",").index("ratio")
    assert {row.split(",")[rows[0].split(",").index("ratio")] for row in rows[1:]} == {"0.2", "0.5"}


class TestList:
    def test_it_shows_and_finds_states_names_progress_and_best(self, client, ledger, spec):
        client.post("/v1/experiments", json=spec(name="another"))
        words = read(client, "/")
        assert re.search(
            r"who .*running 91 % 7 of 8 trials .* 0\.105 \d[\d.]* % of the baseline", words
        )
        assert "another queued" in words
        assert "another" not in read(client, "/?name=WHO&state=")
        assert "who" not in read(client, "/?state=queued")
        assert "No experiment matches" in read(client, "/?state=failed")

    def test_100_percent_stands_for_all_of_it(self):
        shown = [show_percent(fraction) for fraction in (None, 0.29, 0.996, 1.0)]
        assert shown == ["–", "29 %", "99 %", "100 %"]

    def test_pages_lead_through_all_of_them(self, client, spec):
        for number in range(30):
            client.post("/v1/experiments", json=spec(name=f"n{number:02d}"))
        first = client.get("/?name=n").text
        assert "n29" in first
        assert "n04" not in first
        older = unescape(re.search(r'rel="next" href="([^"]+)"', first)[1])
        second = client.get(older).text
        assert re.findall(r">(n\d\d)<", second) == ["n04", "n03", "n02", "n01", "n00"]
        assert 'rel="next"' not in second
        back = unescape(
            re.search(r'href="([^"]+)">Newest', client.get(f"{older}&archived=true").text)[1]
        )
        assert "archived=true" in back

    def test_without_archived_ones_an_empty_list_says_so(self, client, spec):
        assert "Nothing was posted yet" in read(client, "/?archived=true")
        id = client.post("/v1/experiments", json=spec()).json()["id"]
        for action in ("cancel", "archive"):
            assert client.post(f"/v1/experiments/{id}/{action}").status_code == 202
        page = client.get("/").text
        assert "Nothing was posted yet" not in page
        assert 'href="/?archived=true"' in page

    def test_links_of_a_list_with_archived_ones_keep_them(self, client, spec):
        client.post("/v1/experiments", json=spec(project="of mine"))
        for archived, end in (("", ""), ("&archived=true", "&amp;archived=true")):
            page = client.get(f"/?name={archived}").text
            assert f'href="/?project=of%20mine{end}"' in page
            page = client.get(f"/?project=of%20mine{archived}").text
            assert f'href="/{end.replace("&amp;", "?")}">Show all' in page

    def test_tags_lead_to_all_that_have_them(self, client, spec):
        tagged = spec(name="tagged", tags={"paper": "re & buttal"})
        id = client.post("/v1/experiments", json=tagged).json()["id"]
        client.post("/v1/experiments", json=spec(name="other"))
        link = re.search(
            r'href="([^"]+)">paper=re &amp; buttal', client.get(f"/experiments/{id}").text
        )
        assert link is not None
        page = client.get(unescape(link[1])).text
        assert ">tagged<" in page
        assert ">other<" not in page
        assert "Show all" in page
        assert client.get("/?tag=paper").status_code == 422

    def test_what_ended_before_its_first_trial_has_a_bar_that_rests(self, client, record, spec):
        id = client.post("/v1/experiments", json=spec()).json()["id"]
        ledger = RecordLedger(record.url, id, record.claim(id).generation)
        ledger.set_total(0)
        ledger.end("cancelled")
        assert client.get(f"/v1/experiments/{id}").json()["progress"]["fraction"] is None
        for path in ("/", f"/experiments/{id}"):
            bars = [found for tag, found in Tags(client.get(path).text).found if tag == "progress"]
            assert [bar.get("value") for bar in bars] == ["0"]


class TestFields:
    def test_the_form_leads_to_what_each_field_means(self, client):
        form = Tags(client.get("/new").text)
        assert "/fields" in [each.get("href") for tag, each in form.found if tag == "a"]
        page = client.get("/fields").text
        assert "`" not in read(client, "/fields")
        links = [each.get("href") or "" for tag, each in Tags(page).found if tag == "a"]
        ids = {each.get("id") for _, each in Tags(page).found}
        assert {link for link in links if link.startswith("#") and link[1:] not in ids} == set()
        assert {"model-scornn", "task-copying", "search"} <= ids
        folds = [each for tag, each in Tags(page).found if tag == "details"]
        headings = [tag for tag, _ in Tags(page).found if tag in ("h2", "h3")]
        assert len(folds) == len(headings)


class TestExperiment:
    def test_it_names_the_arms_without_a_trial(self, client, ledger, record, settings):
        id = client.post("/v1/experiments", json=SPEC).json()["id"]
        played = [ledger.experiment_id, id]
        untried = [client.get(f"/v1/experiments/{each}/arms").json()["untried"] for each in played]
        assert untried == [[], ["scornn", "lstm"]]
        later = RecordLedger(record.url, id, record.claim(id).generation)
        complete(later, Path(settings.storage_folder), 0, "lstm", 0.1)
        assert client.get(f"/v1/experiments/{id}/arms").json()["untried"] == ["scornn"]
        assert "Arms without a trial: scornn" in read(client, f"/experiments/{id}")
        assert "Arms without a trial" not in read(client, f"/experiments/{ledger.experiment_id}")

    def test_it_shows_what_a_person_asks_first(self, client, ledger):
        words = read(client, f"/experiments/{ledger.experiment_id}")
        scornn = client.get(f"/v1/experiments/{ledger.experiment_id}/arms").json()["items"][0]
        value, test = scornn["value"], scornn["test"]["cross_entropy"]
        assert (value["n"], value["mean"]) == (2, pytest.approx(0.105))
        assert value["low"] < 0.1 < 0.11 < value["high"]
        for data, found in (("validation", value), ("test", test)):
            row = (
                f"{data} cross entropy {found['mean']:.4g} {found['sd']:.4g} {found['low']:.4g} to"
            )
            assert row in words
        assert "1 failed Trial 4 , scornn lr=0.01 : KeyError: " in words
        assert "1 diverged Trial 5 , lstm lr=0.1 : diverged by step 100 of 100" in words
        assert "negative_ones is over hidden_size" in words
        assert "0.25 0.21 " in words  # paper, measured
        assert "no arm of this experiment measures it" in words
        assert "Cancel" in words
        ledger.end("completed")
        assert "Cancel" not in read(client, f"/experiments/{ledger.experiment_id}")

    def test_a_seed_that_came_further_is_not_where_another_diverged(self, client, ledger):
        open_trial(ledger, 8, "lstm", 0.1)
        early = replace(seed_result(0, 9.0, "diverged"), step=3)
        seeds = [early, seed_result(1, 0.1, "completed")]
        ledger.finish(8, ledger.begin(8), "diverged", summarise(seeds))
        for place in ("", "/trials/8"):
            words = read(client, f"/experiments/{ledger.experiment_id}{place}")
            assert "iverged by step 100" in words
            assert "iverged at step 100" not in words

    @pytest.mark.parametrize(
        ("state", "heading"),
        [("cancelled", "Why it was cancelled"), ("failed", "What went wrong")],
    )
    def test_who_cancels_is_not_told_that_something_went_wrong(
        self, client, ledger, state, heading
    ):
        ledger.end(state, "because of this")
        words = read(client, f"/experiments/{ledger.experiment_id}")
        assert f"{heading} because of this" in words
        assert words.count("What went wrong") == (state == "failed")

    def test_a_limit_that_ended_it_is_told_with_its_command(self, client, ledger):
        words = "ended early: its 5 s are over. `eigensweep extend` with another limit goes on"
        ledger.record_notices([Notice("limit", words)])
        ledger.end("completed")
        page = client.get(f"/experiments/{ledger.experiment_id}").text
        assert "are over. <code>eigensweep extend</code> with another limit goes on.</p>" in page

    def test_of_trials_that_were_cut_off_the_page_tells_which_led(self, client, record, spec):
        id = client.post("/v1/experiments", json=spec()).json()["id"]
        ledger = RecordLedger(record.url, id, record.claim(id).generation)
        ends = [("cancelled", 0.3), ("pruned", 0.2), ("diverged", 0.1), ("cancelled", None)]
        for number, (outcome, value) in enumerate(ends):
            config = {"training": {"steps": 100}, "seed": 0, "replicates": 1}
            ledger.open(number, "scornn", {}, config, f"hash {number}")
            attempt = ledger.begin(number)
            ledger.report(number, attempt, 10, {"objective": 0.9}, None)
            result = None if value is None else Result(value=value, step=30)
            ledger.finish(number, attempt, outcome, result)
        ledger.end("cancelled")
        page = read(client, f"/experiments/{id}")
        assert "0.2 so far, by trial 1 of scornn" in page
        shown = client.get(f"/v1/experiments/{id}/trials/0").json()
        assert (shown["state"], shown["value"], shown["step"]) == ("cancelled", 0.3, 30)
        assert client.get(f"/v1/experiments/{id}").json()["best"] is None

    def test_the_list_of_trials_is_filtered_sorted_and_paged(self, client, ledger):
        here = f"/experiments/{ledger.experiment_id}/trials"
        order = re.findall(r"/trials/(\d+)\"", client.get(here).text)
        assert order == ["0", "1", "2", "3", "4", "5", "6", "7"]
        found = re.findall(r"/trials/(\d+)\"", client.get(f"{here}?arm=lstm&sort=-number").text)
        assert found == ["7", "5", "3", "2"]
        assert re.findall(r"/trials/(\d+)\"", client.get(f"{here}?state=failed").text) == ["4"]
        nothing = client.get(f"{here}?arm=<i>").text
        assert "No trial matches." in nothing
        assert "<option selected>&lt;i&gt;</option>" in nothing

    def test_a_trial_shows_settings_checkpoints_log_and_traceback(self, client, ledger):
        here = f"/experiments/{ledger.experiment_id}/trials"
        words = read(client, f"{here}/0")
        assert "optimizer.lr 0.0001 chosen" in words
        place = rf"{ledger.experiment_id}/00000/1/step-000000100-1-\w+\.pt"
        assert re.search(place, words)
        assert "attempt 1 began on here, process 7, cpu" in words
        assert "step 100: valid/cross_entropy 0.1" in words
        assert "spectra" in words
        failed = read(client, f"{here}/4")
        assert "Why it is failed KeyError: " in failed
        assert "Traceback (most recent call last): File x" in failed

    def test_a_completed_trial_without_a_value_says_why(self, client, ledger):
        here = f"{ledger.experiment_id}/trials/7"
        ledger.finish(7, 1, "completed", Result(step=100, valid={"cross_entropy": 0.1}))
        trial = client.get(f"/v1/experiments/{here}").json()
        assert (trial["state"], trial["value"]) == ("completed", None)
        assert trial["error"].startswith("No evaluation gave a finite value of the objective's")
        assert "Why it has no value No evaluation gave" in read(client, f"/experiments/{here}")

    def test_a_population_shows_who_went_on_from_whom_and_with_what(self, client, ledger):
        here = f"/experiments/{ledger.experiment_id}"
        assert "Population" not in read(client, here)
        assert "Lineage" not in read(client, f"{here}/trials/7")
        ledger.end_round(50, {7: Takeover(50, 2, {"optimizer.lr": 0.0123}, "h2")})
        told = "trial step took over from trial went on with 7 50 2 lr=0.0123"
        assert "Population Trials that were replaced" in read(client, here)
        assert told in read(client, here)
        assert told in read(client, f"{here}/trials/7")
        assert "lr=0.001 changed at step 50" in read(client, f"{here}/trials")

    def test_the_api_tells_a_lineage_and_compares_no_such_trial(self, client, ledger):
        here = f"/v1/experiments/{ledger.experiment_id}"
        ledger.end_round(50, {7: Takeover(50, 2, {"optimizer.lr": 0.0123}, "h2")})
        ledger.finish(7, 1, "completed", summarise([seed_result(0, 0.01, "completed")]))
        trial = client.get(f"{here}/trials/7").json()
        assert trial["lineage"] == [{"step": 50, "source": 2, "params": {"optimizer.lr": 0.0123}}]
        assert trial["params"] == {"optimizer.lr": 0.001}
        assert client.get(here).json()["best"]["number"] == 7
        numbers = [each["number"] for each in client.get(f"{here}/points").json()["items"]]
        assert 7 not in numbers
        assert {0, 1, 2, 3} < set(numbers)
        table = client.get(f"{here}/trials.csv").text
        assert "step 50 from trial 2: optimizer.lr=0.0123" in table
        rows = TrialTable.rank(client.get(here).json(), [trial])
        assert "changes" in rows.columns
        assert rows[0]["changes"] == 1

    def test_the_form_starts_from_a_preset_or_an_experiment(self, client, ledger):
        for query, name in (
            ("?preset=quickstart", "quickstart"),
            (f"?experiment={ledger.experiment_id}", SPEC["name"]),
        ):
            page = client.get(f"/new{query}").text
            text = unescape(re.search(r"<textarea[^>]*>(.*)</textarea>", page, re.S)[1])
            assert yaml.safe_load(text)["name"] == name
            sent = client.post(
                "/v1/experiments", content=text, headers={"Content-Type": "application/yaml"}
            )
            assert sent.status_code == 201, sent.text

    def test_arms_are_compared_in_words_and_one_alone_is_not(self, client, ledger):
        here = f"/experiments/{ledger.experiment_id}"
        link = re.search(r'href="(/compare\?[^"]+)">Compare the arms', client.get(here).text)[1]
        words = read(client, unescape(link))
        (pair,) = client.get("/v1" + unescape(link)).json()["pairs"]
        for split in ("valid", "test"):
            assert pair[split]["words"] in words
        mean, low = (show_number(pair["test"][part]) for part in ("mean", "low"))
        assert f"{mean} {low} to" in words
        chosen = f"/compare?of={ledger.experiment_id}/0"
        assert "choose at least two" in read(client, chosen)
        assert "no experiment 'x'" in read(client, f"{chosen}&of=x&of=", 404)

    @pytest.mark.parametrize(
        ("path", "status", "words"),
        [
            ("/?of=x", 422, "of"),
            (f"/compare?{'&'.join(['of=x'] * 30)}", 422, "20"),
            ("/experiments/none", 404, "no experiment 'none'"),
            ("/experiments/none/trials/3", 404, "no experiment"),
            ("/?state=lost", 422, "queued"),
            ("/?cursor=x", 422, "next_cursor"),
            ("/new?preset=quikstart", 404, "quickstart"),
        ],
    )
    def test_an_error_is_a_page_that_says_what_there_is(self, client, path, status, words):
        assert words in read(client, path, status)


class TestReproductions:
    def test_the_list_has_every_suite_its_cost_and_what_it_lacks(self, client):
        page = client.get("/reproductions").text
        rows = {
            name: text
            for name, text in re.findall(r"<code>(.+?)</code></th>(.*?)</tr>", page, re.S)
        }
        assert list(rows) == suite_names()
        assert "Copying with 128 or 256 units" in rows[NAME]
        for item in client.get("/v1/reproduction-suites").json()["items"]:
            row = unescape(rows[item["name"]])
            assert item["says"] in row
            for minutes in item["core_minutes"].values():
                words = f"about {show_duration(60 * minutes)} of one core"
                assert (words if minutes else "analyses, no training") in row
            assert row.count("data-post") == (0 if item["missing"] else 2)
            assert all(task in row for task in item["missing"])
            assert all(words in row for words in item["missing"].values())
        assert "LDC93S1" in rows["enrnn/figure-3"]
        assert 'href="/reproductions"' in client.get("/").text

    def test_one_shows_its_progress_and_then_its_report(self, client, record, settings):
        posted = client.post("/v1/reproductions", json={"name": NAME}).json()
        here = posted["links"]["page"]
        assert "running" in read(client, here)
        assert 'data-refresh="3"' in client.get(here).text
        assert f"running Look at it of {NAME}, short" in read(client, "/reproductions")

        play_driver(record, settings.storage_folder, posted["experiments"][0]["id"])
        Reproducer(client.app).tick()

        report = client.get(f"{posted['links']['self']}/report.json").json()
        page, words = client.get(here), read(client, here)
        assert "data-refresh" not in page.text
        assert f"Verdict {report['verdict']} {report['words']}" in words
        assert all(claim["says"] in words for claim in report["claims"])
        assert report["command"] in words
        assert report["cut"] in words
        picture = re.search(r'<img src="([^"]+)" alt="[^"]+', page.text)[1]
        assert client.get(picture).headers["Content-Type"].startswith("image/svg+xml")
        assert "img-src 'self'" in page.headers["Content-Security-Policy"]
        assert "style=" not in page.text
        assert f"{report['verdict']} Report of {NAME}, short" in read(client, "/reproductions")

    def test_it_is_asked_for_again_as_it_was_asked_for(self, client):
        asked = {"resources": {"cpus": 2, "lanes": 4}, "until_decided": True, "most": 30}
        posted = client.post("/v1/reproductions", json={"name": NAME, **asked}).json()
        for place in (posted["links"]["page"], "/reproductions"):
            client.post(posted["links"]["cancel"])
            bodies = re.findall(r"data-open data-body='([^']+)'", client.get(place).text)
            found = [json.loads(unescape(each)) for each in bodies]
            (mine,) = (e for e in found if (e["name"], e["budget"]) == (NAME, "short"))
            again = client.post("/v1/reproductions", json=mine)
            assert again.json()["id"] == posted["id"]

    def test_one_that_was_cancelled_or_failed_is_asked_for_again(self, client, record, settings):
        posted = client.post("/v1/reproductions", json={"name": NAME}).json()
        client.post(posted["links"]["cancel"])
        page = client.get(posted["links"]["page"]).text
        assert "Run it again" in page
        assert "Run it again" in client.get("/reproductions").text
        client.post("/v1/reproductions", json={"name": NAME})
        reproducer = Reproducer(client.app)
        again = client.get(posted["links"]["self"]).json()
        play_driver(record, settings.storage_folder, again["experiments"][0]["id"])
        reproducer.reports.children.run = lambda folder, order: "its process ended with status 9"
        reproducer.tick()
        words = read(client, posted["links"]["page"])
        assert "Why there is no report its process ended with status 9" in words
        assert "Run it again" in words
        assert "there is no reproduction 'none'" in read(client, "/reproductions/none", 404)


class TestHead:
    def test_head_is_answered_as_get_without_the_body(self, client, ledger):
        for path in pages_of(ledger.experiment_id):
            got, headed = client.get(path), client.head(path)
            assert headed.status_code == got.status_code == 200, path
            assert headed.headers["Content-Type"] == got.headers["Content-Type"]
        assert client.head("/experiments/none").status_code == 404
        refused = client.put("/", json={})
        assert (refused.status_code, refused.headers["Allow"]) == (405, "GET, HEAD")


class TestSafety:
    def test_nothing_that_a_person_wrote_runs_on_any_page(self, client, ledger):
        for path in pages_of(ledger.experiment_id):
            answer = client.get(path)
            assert answer.status_code == 200, answer.text
            tags = Tags(answer.text)
            assert tags.count("img") == tags.count("style") == 0
            for tag, attributes in tags.found:
                assert not [name for name in attributes if name == "style" or name[:2] == "on"]
                if tag == "script":
                    assert attributes["src"].startswith("/static/")
            assert tags.in_scripts == ""
            policy = answer.headers["Content-Security-Policy"].split("; ")
            rules = dict(rule.split(" ", 1) for rule in policy)
            assert rules["default-src"] == rules["frame-ancestors"] == "'none'"
            assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"

    def test_every_file_of_a_page_comes_from_the_service(self, client, ledger):
        page = client.get(f"/experiments/{ledger.experiment_id}").text
        files = re.findall(r'<(?:script|link)[^>]+(?:src|href)="([^"]+)"', page)
        assert any("plotly" in name for name in files)
        for name in files:
            assert name.startswith("/static/")
            assert client.get(name).status_code == 200
        assert client.get("/static/../routes.py").status_code == 404
        assert client.get("/static/%2e%2e/routes.py").status_code == 404

    def test_with_a_token_strangers_sign_in_and_come_back(
        self, settings, record, dispatcher, client, ledger
    ):
        own = settings.model_copy(update={"token": SecretStr("let-me-in")})
        app = create_app(own, record, dispatcher)
        guarded = TestClient(app, base_url="http://localhost:8642", follow_redirects=False)
        for path in pages_of(ledger.experiment_id):
            answer = guarded.get(path, headers={"Accept": "text/html"})
            assert answer.status_code == 401, path
            assert 'action="/session"' in answer.text
            assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
            assert "<script>" not in answer.text
        assert guarded.get("/static/sign-in.js").status_code == 200
        sent = guarded.post("/session", data={"token": "let-me-in", "place": "/new?preset=x"})
        assert sent.headers["location"] == "/new?preset=x"
        assert guarded.get("/").status_code == 200
        assert guarded.get(f"/v1/experiments/{ledger.experiment_id}/curves").status_code == 200


class TestOverviews:
    def test_curves_are_means_over_seeds_of_best_and_running(self, client, ledger, settings):
        here = f"/v1/experiments/{ledger.experiment_id}/curves"
        found = client.get(here).json()
        assert found["metric"] == "valid/cross_entropy"
        assert found["baseline"] == pytest.approx(2 * 2.0794415 / 9)
        assert [(each["arm"], each["number"]) for each in found["items"]] == [
            ("scornn", 0), ("scornn", 1), ("lstm", 2), ("lstm", 3), ("lstm", 7),
        ]  # fmt: skip
        best = found["items"][0]
        assert best["steps"] == list(range(0, 101, 10))
        assert best["mean"][0] == pytest.approx(0.1 + 1 + 0.005)
        assert best["low"][0] < best["mean"][0] < best["high"][0]
        assert found["items"][-1]["steps"] == [50]  # the store has nothing of it: its rungs
        assert found["items"][-1]["low"] == [None]
        thin = client.get(f"{here}?points=4&trials=1").json()["items"]
        assert thin[0]["steps"] == [0, 40, 80, 100]
        assert len(thin) == 3

    def test_seeds_that_end_at_other_steps_share_thinned_points(self, client, ledger, settings):
        complete(ledger, Path(settings.storage_folder), 8, "lstm", 1e-4, points=6)
        key = replicate_key(ledger.experiment_id, 8, 1)
        longer = [CurvePoint(step, {"valid/cross_entropy": 0.1}, 0) for step in range(60, 190, 10)]
        Store(settings.storage_folder).commit(key, 1, 180, {}, longer)
        here = f"/v1/experiments/{ledger.experiment_id}/curves?points=4"
        curves = {each["number"]: each["steps"] for each in client.get(here).json()["items"]}
        assert curves[8] == [0, 40], "the other seed ends at 100, the budget"
        assert curves[1] == [0, 40, 80, 100]

    def test_a_trial_that_gets_more_seeds_keeps_its_curve(self, client, ledger, settings):
        here = f"/v1/experiments/{ledger.experiment_id}/curves"
        before = client.get(here).json()["items"][0]
        ledger.reopen(0, ledger.load()[0].config | {"replicates": 4}, "seed 3 of the race")
        for _ in ("it waits", "it trains", "a new seed has begun"):
            (now,) = [each for each in client.get(here).json()["items"] if each["number"] == 0]
            assert (now["steps"], now["mean"]) == (before["steps"], before["mean"])
            if now["state"] == "waiting":
                attempt = ledger.begin(0)
                store, key = (
                    Store(settings.storage_folder),
                    replicate_key(ledger.experiment_id, 0, 2),
                )
                store.begin(key, attempt)
            else:
                points = [CurvePoint(step, {"valid/cross_entropy": 9.0}, 0) for step in (0, 10)]
                store.commit(key, attempt, 10, {}, points)

    def test_seeds_of_a_race_leave_curves_comparable(self, client, record, settings):
        storage = Path(settings.storage_folder)
        ledger = play(client, record, storage, {**SPEC, "racing": {"most": 3}})
        here = f"/v1/experiments/{ledger.experiment_id}"
        before = client.get(f"{here}/curves").json()["items"][0]
        ledger.reopen(0, ledger.load()[0].config | {"replicates": 3}, "seed 2 of the race")
        attempt, key = ledger.begin(0), replicate_key(ledger.experiment_id, 0, 2)
        store = Store(storage)
        store.begin(key, attempt)
        points = [CurvePoint(step, {"valid/cross_entropy": 9.0}, 0) for step in range(0, 101, 10)]
        store.commit(key, attempt, 100, {}, points)
        seeds = [seed_result(seed, 0.1, "completed") for seed in range(3)]
        ledger.finish(0, attempt, "completed", summarise(seeds))
        now = client.get(f"{here}/curves").json()["items"][0]
        assert (now["number"], now["n"], now["mean"]) == (0, 2, before["mean"])
        own = client.get(f"{here}/trials/0/curves").json()["items"]
        assert [curve["seed"] for curve in own] == [0, 1, 2]

    @pytest.mark.parametrize("metric", ["nothing", "step", "metrics", "timestamp_ms", "crc32"])
    def test_a_lines_own_names_are_no_metrics(self, client, ledger, metric):
        here = f"/v1/experiments/{ledger.experiment_id}/curves"
        assert client.get(f"{here}?metric={metric}").status_code == 422

    def test_a_metric_of_no_curve_is_refused_with_those_that_exist(self, client, ledger):
        here = f"/v1/experiments/{ledger.experiment_id}/curves"
        refused = client.get(f"{here}?metric=valid/cross_entrpy")
        assert refused.status_code == 422
        (problem,) = refused.json()["errors"]
        assert (problem["path"], problem["available"]) == ("metric", ["valid/cross_entropy"])
        assert "did you mean 'valid/cross_entropy'?" in problem["message"]

    def test_before_the_first_point_no_metric_is_unknown(self, client, spec):
        id = client.post("/v1/experiments", json=spec()).json()["id"]
        answer = client.get(f"/v1/experiments/{id}/curves?metric=train/loss")
        assert (answer.status_code, answer.json()["items"]) == (200, [])

    def test_a_reused_trial_shows_the_curve_it_was_taken_from(
        self, client, record, ledger, settings
    ):
        again = play(client, record, Path(settings.storage_folder) / "elsewhere")
        source = Source(ledger.experiment_id, 0)
        result = replace(summarise([seed_result(0, 0.1, "completed")]), reused_from=source)
        again.open(8, "scornn", {}, {"seed": 0, "replicates": 2}, "h8")
        again.finish(8, 0, "reused", result)
        found = client.get(f"/v1/experiments/{again.experiment_id}/trials/8/curves").json()["items"]
        assert {curve["seed"] for curve in found} == {0, 1}

    def test_what_was_reused_is_said(self, client, record, ledger, settings):
        again = play(client, record, Path(settings.storage_folder) / "elsewhere")
        id, source = again.experiment_id, ledger.experiment_id
        for number, where in enumerate((source, "1aaaaaaaaaaaa", source), start=8):
            result = summarise([seed_result(0, 0.1, "completed")])
            again.open(number, "scornn", {}, {"seed": 0, "replicates": 2}, f"h{number}")
            again.finish(number, 0, "reused", replace(result, reused_from=Source(where, 0)))
        found = client.get(f"/v1/experiments/{id}").json()
        assert found["reused_from"] == ["1aaaaaaaaaaaa", source]
        words = f"3 from 1aaaaaaaaaaaa, {source}, same code; `reuse: false` trains anew"
        assert words in format_experiment(found, "http://here")
        assert "3 reused from 1aaaaaaaaaaaa" in read(client, f"/experiments/{id}")
        assert client.get(f"/v1/experiments/{source}").json()["reused_from"] == []

    def test_a_trial_has_all_its_curves_and_checkpoints(self, client, ledger):
        here = f"/v1/experiments/{ledger.experiment_id}/trials/0"
        curves = client.get(f"{here}/curves").json()["items"]
        assert [(c["seed"], c["metric"], len(c["steps"])) for c in curves] == [
            (0, "valid/cross_entropy", 11),
            (1, "valid/cross_entropy", 11),
        ]
        (first, _) = client.get(f"{here}/checkpoints").json()["items"]
        assert (first["seed"], first["step"]) == (0, 100)
        assert first["bytes"] > 0
        for most in (4, 6):  # a thinned one has both ends
            thinned = client.get(f"{here}/curves?points={most}").json()["items"][0]["steps"]
            whole = curves[0]["steps"]
            assert len(thinned) <= most
            assert (thinned[0], thinned[-1]) == (whole[0], whole[-1])

    @pytest.mark.parametrize("damaged", ["head", "curve"])
    def test_a_damaged_file_hides_nothing_else(self, client, ledger, settings, damaged):
        folder = Path(settings.storage_folder) / replicate_key(ledger.experiment_id, 0, 0)
        file = max(folder.glob(f"{damaged}*"))
        file.write_bytes(file.read_bytes()[:40])
        here = f"/v1/experiments/{ledger.experiment_id}"
        assert client.get(f"/experiments/{ledger.experiment_id}/trials/0").status_code == 200
        assert client.get(f"{here}/trials/0/checkpoints").status_code == 200
        found = client.get(f"{here}/trials/0/curves").json()["items"]
        assert (found[-1]["seed"], len(found[-1]["steps"])) == (1, 11)
        assert client.get(f"{here}/curves").status_code == 200

    def test_a_large_search_shows_its_best_and_an_even_sample(self, client, ledger, settings):
        for number in range(8, 40):
            complete(ledger, Path(settings.storage_folder), number, "lstm", 1 / number, points=2)
        here = f"/v1/experiments/{ledger.experiment_id}/points"
        whole = client.get(here).json()
        assert whole["count"] == len(whole["items"]) == 37
        some = client.get(f"{here}?most=10").json()
        assert some["count"] == 37
        numbers = [point["number"] for point in some["items"]]
        assert set(numbers) >= {39, 38, 37, 36, 35}
        assert 10 <= len(numbers) <= 12
        assert numbers == sorted(numbers)
        others = set(numbers) - {39, 38, 37, 36, 35}
        assert {number % 2 for number in others} == {0, 1}, "two arms that take turns"

    def test_paper_and_measured_stand_side_by_side(self, client, ledger):
        items = client.get(f"/v1/experiments/{ledger.experiment_id}/published").json()["items"]
        assert items[0]["measured"]["mean"] == pytest.approx(0.21)
        assert items[0]["gap"] == pytest.approx(-0.04)
        assert items[0]["place"] == "table 1"
        assert items[1]["measured"]["mean"] == 90
        assert items[2]["measured"] is None
        assert items[2]["reason"] == "no arm of this experiment measures it"

    def test_seconds_a_step_are_those_of_the_seeds(self, client, record):
        published = {"arm": "scornn", "metric": "seconds_per_step", "value": 0.03}
        body = {**SPEC, "published": [published]}
        id = client.post("/v1/experiments", json=body).raise_for_status().json()["id"]
        ledger = RecordLedger(record.url, id, record.claim(id).generation)
        ledger.open(0, "scornn", {}, {"training": {"steps": 10}, "replicates": 2}, "h")
        ledger.begin(0)
        seeds = [ReplicateResult(seed=n, value=1.0, step_seconds=0.01 * n) for n in (1, 2)]
        ledger.finish(0, 1, "completed", summarise(seeds))
        (row,) = client.get(f"/v1/experiments/{id}/published").json()["items"]
        assert (row["measured"]["mean"], row["gap"]) == pytest.approx((0.015, -0.015))

    def test_a_preset_at_another_length_is_not_compared(self, client, record):
        spec = load_preset("enrnn/copying").model_dump(mode="json", exclude_unset=True)
        spec["task"]["delay"], spec["training"]["steps"] = 100, 300
        id = client.post("/v1/experiments", json=spec).json()["id"]
        items = client.get(f"/v1/experiments/{id}/published").json()["items"]
        differs = "task.delay is 100 here and 2000 there, training.steps is 300 here and 4000 there"
        reasons = {row["metric"]: row["reason"] for row in items}
        assert reasons["baseline"] == f"not comparable: {differs}"
        assert reasons["valid/cross_entropy"] == f"not comparable: {differs}"
        assert reasons["parameters"] == "arm 'full_urnn' has no ranked trial yet"

    def test_a_preset_as_it_is_has_its_baseline_compared(self, client, record):
        spec = load_preset("enrnn/copying").model_dump(mode="json", exclude_unset=True)
        id = client.post("/v1/experiments", json=spec).json()["id"]
        items = client.get(f"/v1/experiments/{id}/published").json()["items"]
        (baseline,) = [row for row in items if row["metric"] == "baseline"]
        assert baseline["gap"] == pytest.approx(0, abs=1e-6)

    def test_a_trial_shows_what_was_chosen_and_each_seeds_best_step(self, client, record):
        id = client.post("/v1/experiments", json=SPEC).json()["id"]
        ledger = RecordLedger(record.url, id, record.claim(id).generation)
        config = {"model": {"name": "scornn", "negative_fraction": None, "negative_ones": 46}}
        ledger.open(0, "scornn", {"model.negative_fraction": 0.48}, config, "h0")
        seeds = [
            replace(seed_result(seed, 0.1, "completed"), best_step=step)
            for seed, step in enumerate((600, 400, 100))
        ]
        ledger.finish(0, ledger.begin(0), "completed", summarise(seeds))
        page = client.get(f"/experiments/{id}/trials/0").text
        assert "600, 400, 100" in page
        assert "<code>0.48</code>" in page

    def test_a_trials_page_is_renewed_while_it_trains(self, client, record, spec):
        id = client.post("/v1/experiments", json=spec()).json()["id"]
        ledger = RecordLedger(record.url, id, record.claim(id).generation)
        complete_config = {"model": {"name": "scornn"}, "seed": 0, "replicates": 1}
        ledger.open(0, "scornn", {}, complete_config, "h0")
        attempt, here = ledger.begin(0), f"/experiments/{id}/trials/0"
        ledger.report(0, attempt, 50, {"objective": 0.15, "cross_entropy": 0.15}, None)
        page = client.get(here).text
        assert "Newest scores" in page
        assert '<th scope="row">objective</th>' not in page
        assert "data-body" not in page
        ledger.finish(0, attempt, "completed", summarise([seed_result(0, 0.1, "completed")]))
        page = client.get(here).text
        assert "Scores at the best step" in page
        assert ("data-body" in page, "data-refresh" in page) == (True, False)

    def test_a_trials_page_is_renewed_while_an_analysis_is_made(self, client, ledger):
        here, found = f"/experiments/{ledger.experiment_id}/trials/0", []
        subject = {"experiment": ledger.experiment_id, "trial": 0}
        for state in ("queued", "finished", "cancelled"):
            made = AnalysisRecord(
                id="a", name="spectra", options={}, state=state, created_at=1.0, **subject
            )
            client.app.state.service.jobs.put(made.to_job())
            page = client.get(here).text
            found.append((f"badge {state}" in page, "data-refresh" in page))
            assert ('data-post="/v1/analyses/a/cancel"' in page) == (state == "queued")
        assert found == [(True, True), (True, False), (True, False)]


YAML = {"Content-Type": "application/yaml; charset=utf-8"}


class TestYaml:
    def test_a_spec_is_posted_as_yaml(self, client, spec):
        text = yaml.safe_dump(spec()).replace("0.001", "1e-3")
        answer = client.post("/v1/experiments", content=text, headers=YAML)
        assert answer.status_code == 201
        assert answer.json()["spec"]["search"]["space"]["optimizer.lr"] == [1e-3, 1e-2]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("name: x\n  y: [", "line 2"),
            ("a: &a [1]\n" + "b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n" * 9, "YAML"),
            (b"\xff\xfe\x00", "utf-8"),
            ("just words", "object"),
            ("", "empty"),
        ],
    )
    def test_what_is_no_spec_is_refused_in_words(self, client, text, words):
        answer = client.post("/v1/experiments", content=text, headers=YAML)
        assert answer.status_code in (415, 422)
        assert words in answer.text
