"""The page of all results that are kept in a folder, with its pictures.

It is made of the files alone: by the suites, the claims and the rules of now, without a service and
without training.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Final

from eigensweep.reports import pictures
from eigensweep.reports.front import (
    METHODS,
    REFERENCES,
    Shown,
    chance_words,
    count_words,
    explain_missing,
    machine_words,
    write_claims,
    write_logs,
)
from eigensweep.reports.markdown import table, write_report
from eigensweep.reports.messages import Results
from eigensweep.reports.report import ReportContent, make_report
from eigensweep.reports.results import name_file, read_folder
from eigensweep.results.trial_result import Result
from eigensweep.search_spaces.shipped.reproductions import make_specs, suite_names
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store.places.durable_files import write_whole


def make_page(folder: Path, page: Path) -> None:
    """Write the page of all results in a folder, and its pictures into a folder beside it.

    Raises:
        ValueError: if a file of the folder holds no results, or those of an unknown suite.
        OSError: if something cannot be read or written.
    """
    place = page.parent / page.stem
    place.mkdir(parents=True, exist_ok=True)
    shown = read(folder)
    for name, each in shown.items():
        draw(each.results, each.content, place / name_picture(name))
    write_whole(page, write(shown, folder, page).encode())


def read(folder: Path) -> dict[str, Shown]:
    """Return the results of a folder with their reports, by suite."""
    return {
        name: Shown(results, make_report(results), is_outdated(results))
        for name, results in choose(read_folder(folder)).items()
    }


def choose(found: Iterable[Results]) -> dict[str, Results]:
    """Return the results of each suite, in the suites' order; of both budgets those of the full."""
    by_name: dict[str, Results] = {}
    for each in found:
        if each.name not in by_name or each.budget == "full":
            by_name[each.name] = each
    unknown = by_name.keys() - set(suite_names())
    if unknown:
        raise ValueError(f"there is no reproduction '{min(unknown)}': remove its results")
    return {name: by_name[name] for name in suite_names() if name in by_name}


def write(shown: Mapping[str, Shown], folder: Path, page: Path) -> str:
    """Return the page of these results."""
    place = Path(os.path.relpath(folder, page.parent))
    missing = [name for name in suite_names() if name not in shown]
    logs = write_logs(shown)
    explained = (
        ["## Where paper, logs and these runs differ", "", LOGS, "", *logs, ""] if logs else []
    )
    lines = [
        "# The papers, measured again",
        "",
        "`eigensweep reproduce --page-only` makes this page of the [files of results]"
        f"({place.as_posix()}) alone. {count_words(shown)} In bold: the primary claim of "
        "a table or figure.",
        "",
        *write_claims(shown),
        "",
        *explained,
        "## Methods",
        "",
        METHODS,
        "",
        chance_words(shown.values()),
        "",
        "## Machines and costs",
        "",
        "Runs that two figures share are counted once. Times are those that passed, with all that "
        "ran there at the same time.",
        "",
        *machine_words(shown.values()),
        "",
    ]
    if missing:
        lines += ["## Not run", "", "Core hours are estimates for one idle core.", ""]
        lines += [
            *table(("table or figure", "why"), ((n, explain_missing(n)) for n in missing)),
            "",
        ]
    lines += ["## References", "", *(f"- {each}" for each in REFERENCES.values()), ""]
    lines += [CITE, ""]
    for name, each in shown.items():
        figure = f"{page.stem}/{name_picture(name)}"
        results = (place / name_file(name, each.results.budget)).as_posix()
        report = write_report(each.content, figure, 2, results=results, outdated=each.outdated)
        lines += [report.rstrip(), ""]
    return "\n".join(lines).rstrip() + "\n"


LOGS: Final = (
    "The nnRNN study's run logs and the settings beside them say more than its figures. Three of "
    "these compare two things at once; the matched claims compare one thing alone."
)

CITE: Final = (
    "To cite this page: [CITATION.cff](../CITATION.cff), with the revision that the reports name."
)


def name_picture(name: str) -> str:
    """Return the name of a suite's picture.

    >>> name_picture("nnrnn/figure-2")
    'nnrnn-figure-2.svg'
    """
    return f"{name.replace('/', '-')}.svg"


def is_outdated(results: Results) -> bool:
    """Return whether the suite has trials or seeds now that these results do not have.

    A trial without a result counts as if it had all of its seeds: it was tried.
    """
    if any(each.state == "unavailable" for each in results.experiments):
        return False
    known: dict[str | None, set[int]] = {}
    for trial in chain.from_iterable(each.trials for each in results.experiments):
        seeds = known.setdefault(trial.config_hash, set())
        if trial.result is None:
            seeds.update(TrialConfig.from_dict(trial.config).seeds if trial.config else ())
        else:
            seeds.update(each.seed for each in Result.from_dict(trial.result).by_replicate)
    configs = (
        spec.trial(point)
        for spec in make_specs(results.name, results.budget).values()
        for point in spec.space()
    )
    return any(not known.get(each.content_hash(), set()) >= {*each.seeds} for each in configs)


def draw(results: Results, content: ReportContent, path: Path) -> None:
    """Draw the picture of a report: that of its first analysis, or its curves."""
    contents = (made.content for made in results.analyses if made.content is not None)
    drawn = next((each for each in contents if "analysis" in each), None)
    if drawn is None:
        pictures.save(content, path)
    else:
        pictures.draw_analysis(drawn, path)
