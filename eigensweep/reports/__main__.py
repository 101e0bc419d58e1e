"""Makes one report in a child process of the service, which survives what goes wrong here.

Started as `python -m eigensweep.reports FOLDER`, with a `ReportOrder` as JSON on standard
input. It leaves the files and a `ReportOutcome` in the folder.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path

from eigensweep.analyses.delivery import NotDeliveredError, deliver_files
from eigensweep.analyses.messages import PNG, SVG, leave_outcome
from eigensweep.common.parents import end_with_parent
from eigensweep.reports import markdown, page, pictures
from eigensweep.reports.messages import (
    CURVES,
    FIGURE,
    FILES,
    HTML,
    JSON,
    MARKDOWN,
    RESULTS,
    ReportOrder,
    ReportOutcome,
)
from eigensweep.reports.report import ReportContent, make_report
from eigensweep.reports.results import collect, write_results
from eigensweep.store.places.durable_files import StorageError, disk_failure, write_whole


def main(folder: Path, text: str) -> None:
    """Make the report and leave its outcome in the folder."""
    try:
        order = ReportOrder.model_validate_json(text)
        content = _write(order, folder)
        outcome = ReportOutcome(
            verdict=content.verdict,
            words=content.words,
            mlflow_problem=_deliver(order, folder),
            wanted=None if content.looks is None else content.looks.wanted,
        )
    except StorageError as error:
        outcome = ReportOutcome(error=str(error), is_temporary=True)
    except Exception as error:  # a bug is kept with its traceback
        is_temporary = disk_failure(error) is not None
        outcome = ReportOutcome(error=traceback.format_exc(), is_temporary=is_temporary)
    leave_outcome(folder, outcome)


def _write(order: ReportOrder, folder: Path) -> ReportContent:
    results = collect(order)
    content = make_report(results, order.id)
    shown = _list_pictures(content, order, folder)
    write_whole(folder / FIGURE, shown[0][1][0].read_bytes())
    write_whole(folder / HTML, page.write_page(content, shown).encode())
    write_whole(folder / MARKDOWN, markdown.write_report(content, FIGURE).encode())
    write_whole(folder / RESULTS, write_results(results))
    write_whole(folder / JSON, content.model_dump_json(indent=2).encode())
    return content


def _list_pictures(
    content: ReportContent, order: ReportOrder, folder: Path
) -> list[tuple[str, list[Path]]]:
    """Return the pictures, each with its words: those of analyses first, then the curves."""
    times = Counter(made.label for made in order.analyses)
    shown = []
    for made in order.analyses:
        if made.folder is not None:
            number = f", {made.repeat + 1} of {times[made.label]}" if times[made.label] > 1 else ""
            files = [Path(made.folder) / SVG, Path(made.folder) / PNG]
            shown.append((f"{made.label.replace('_', ' ')}{number}", files))
        elif made.content is not None and "analysis" in made.content:  # of others the claims' alone
            path = folder / f"{made.label}-{made.repeat}.svg"
            pictures.draw_analysis(made.content, path)
            shown.append((f"{made.label.replace('_', ' ')}, taken up", [path]))
    if any(curves.lines for curves in content.curves) or not shown:
        pictures.save(content, folder / CURVES)
        shown.append((markdown.CAPTIONS[content.picture], [folder / CURVES]))
    return shown


def _deliver(order: ReportOrder, folder: Path) -> str | None:
    """Keep the files on the MLflow run of each experiment; return why that was not possible."""
    runs = [each.run_id for each in order.experiments if each.run_id is not None]
    if not runs or order.mlflow_uri is None:
        return None
    paths = [folder / name for name in FILES]
    try:
        for run_id in runs:
            deliver_files(order.mlflow_uri, run_id, paths, f"reproductions/{order.name}")
    except NotDeliveredError as problem:
        return str(problem)
    return None


if __name__ == "__main__":
    end_with_parent()
    with suppress(OSError):
        os.nice(10)  # trials come first
    main(Path(sys.argv[1]), sys.stdin.read())
