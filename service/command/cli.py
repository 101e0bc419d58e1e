"""The command line. Runs in a user's terminal and talks to the service over HTTP.

It imports no torch, Ray or MLflow, so it starts at once. Exit codes: 0 success; 1 failure (the
experiment failed or was cancelled, the service is away); 2 bad input; 130 Ctrl-C.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from eigensweep.service.client import (
    Analysis,
    AnalysisFailedError,
    Client,
    Experiment,
    ServiceAwayError,
    answers,
)
from eigensweep.service.client.connection import TOKEN_FILE
from eigensweep.service.client.spec_file import (
    InputError,
    parse_options,
    parse_settings,
    parse_trial,
)
from eigensweep.service.command import accounts, backup, nodes, storage, summaries, terminal
from eigensweep.service.command import cluster as cluster_command
from eigensweep.service.command import data as data_command
from eigensweep.service.command.connecting import TokenFile, Url, connect, fail
from eigensweep.service.command.options import BAD_INPUT, FAILURE, INTERRUPTED, AsJson

Source = Annotated[
    str,
    typer.Argument(help="A YAML, JSON or TOML file, '-' for standard input, or a preset's name."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Set one field; the value is YAML; repeatable. Examples: training.steps=500, "
        "arms.lstm.optimizer.lr=0.01, search.space.optimizer.lr=[0.1,0.01].",
    ),
]
Id = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT",
        help="An experiment: its id or the beginning of one, its name, or 'last'.",
    ),
]
Ids = Annotated[
    list[str],
    typer.Argument(
        metavar="EXPERIMENT...", help="Experiments: ids or beginnings of them, names, or 'last'."
    ),
]
Follow = Annotated[bool, typer.Option("--follow", help="Watch it until it is over.")]
Limit = Annotated[int, typer.Option(min=1, help="The largest number of rows.")]
CatalogueName = Annotated[str | None, typer.Argument(help="The name of one, to show it in full.")]

CONTROL, PAPERS, KNOWN, OPERATION = "Control", "Papers", "What there is", "Operation"
"""Where `--help` shows what does not stand in its first panel."""

app = typer.Typer(
    name="eigensweep",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line."""
    app()


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"eigensweep {version('eigensweep')}")
        raise typer.Exit


@app.callback()
def read_options(
    url: Url = None,  # the commands inherit both
    token_file: TokenFile = None,
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Hyperparameter search for long-memory recurrent networks."""
    if token_file is not None:
        os.environ[TOKEN_FILE] = str(token_file)  # every client of this process reads it


@contextmanager
def connect_or_answer_here(url: str | None, as_json: bool = False) -> Iterator[Client]:
    """Lend a client; if no address was given and no service runs, this process answers instead."""
    with connect(url, as_json) as client:
        if not (url or os.environ.get("EIGENSWEEP_URL")):
            try:
                client.get("/healthz")
            except ServiceAwayError:
                from eigensweep.service.command.local import LocalClient

                typer.echo("no service answers; this installation does", err=True)
                client = LocalClient()
        yield client


def make_folder(folder: Path) -> None:
    """Make the folder of files that are written later, after long work.

    Raises:
        OSError: if it cannot be made, or nothing can be written into it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "nothing can be written there", str(folder))


def _print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=2))


def _print(content: Any, to_text: Callable[[Any], str], as_json: bool) -> None:
    if as_json:
        _print_json(content)
    else:
        typer.echo(to_text(content))


@app.command()
def submit(
    source: Source,
    settings: Settings = None,
    follow: Follow = False,
    notify: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="An https address that the service tells how it ends; repeatable. The service "
            "must allow its host (EIGENSWEEP_WEBHOOK_HOSTS).",
        ),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Post an experiment."""
    with connect(url, as_json) as client:
        experiment = client.submit(source, notify=notify or (), **parse_settings(settings or []))
        _tell(experiment, follow, as_json)


def _tell(experiment: Experiment, follow: bool, as_json: bool) -> None:
    """Say that an experiment is queued, or watch it until it is over."""
    for words in experiment.content.get("warnings") or ():
        typer.echo(f"warning: {words}", err=True)
    if follow:
        _watch(experiment, as_json)
    elif as_json:
        _print_json(experiment.content)
    else:
        typer.echo(f"{experiment.id} {experiment.name} is {experiment.state}")
        typer.echo(f"watch it with: eigensweep watch {experiment.id}")


@app.command()
def serve() -> None:
    """Run the service until Ctrl-C. EIGENSWEEP_* variables configure it."""
    from eigensweep.service.process.serve import main as run_service

    sys.exit(run_service())


@app.command()
def preview(
    source: Source, settings: Settings = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Show the trials, sizes and time of an experiment without posting it."""
    with connect_or_answer_here(url, as_json) as client:
        content = client.preview(source, **parse_settings(settings or []))
        _print(content, str, as_json)


@app.command("list")
def list_experiments(
    state: Annotated[str | None, typer.Option(help="Only experiments in this state.")] = None,
    project: Annotated[str | None, typer.Option(help="Only experiments of this project.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Only experiments with this text in their name.")
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only experiments of this user.")] = None,
    archived: Annotated[
        bool, typer.Option("--archived", help="Also experiments that are archived.")
    ] = False,
    limit: Limit = 20,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List experiments, newest first."""
    with connect(url, as_json) as client:
        found = client.experiments(
            limit, state=state, project=project, name=name, owner=owner, archived=archived or None
        )
        if as_json:
            _print_json(found)
            return
        if not found and not any((state, project, name, owner)):
            typer.echo("no experiment to list; post one: eigensweep submit quickstart --follow")
            return
        heads = ("id", "name", "project", "owner", "state", "trials", "best", "created")
        terminal.show_rows(heads, map(summaries.make_list_row, found), terminal.console())


@app.command()
def show(experiment: Id, url: Url = None, as_json: AsJson = False) -> None:
    """Show one experiment: state, progress, best trial, links."""
    with connect(url, as_json) as client:
        content = client.experiment(experiment).content
        _print(content, lambda found: summaries.format_experiment(found, client.url), as_json)


@app.command()
def weights(
    trial: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT[/TRIAL]",
            help="A trial, such as 1m7xnz0qe2nqc/18; default: the best.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Write the weights to this file.")],
    last: Annotated[bool, typer.Option("--last", help="The last weights, not the best.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of this seed; default: the first.")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Write a trial's weights to a file that `torch.load(FILE, weights_only=True)` reads."""
    experiment, _, number = trial.partition("/")
    with connect(url, as_json) as client:
        found = client.experiment(experiment)
        if number and not number.isdecimal():
            raise InputError(f"'{number}' is no number of a trial; expected: EXPERIMENT/18")
        chosen = found.trial(int(number)) if number else found.best
        if chosen is None:
            raise InputError(f"{experiment} has no best trial yet; name one: {experiment}/0")
        kept = chosen.weights("last" if last else "best", seed=seed)
        kept.save(out)
        about = {"trial": chosen["number"], "seed": kept.seed, "step": kept.step, "file": str(out)}
        words = "trial {trial}, seed {seed}, step {step}: {file}".format(**about)
        _print(about, lambda _: words, as_json)


@app.command()
def trials(
    experiment: Id,
    number: Annotated[
        int | None, typer.Argument(help="The number of a trial, to show it in full.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write all trials to this file: .csv or .parquet, by its name."
        ),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Rank an experiment's trials beside the baseline, or show one in full."""
    with connect(url, as_json) as client:
        found = client.experiment(experiment)
        if out is not None:
            found.export(out)
            return
        if number is not None:
            hint = "--json has its whole configuration, its reports and its result"
            _print(found.trial(number), lambda trial: f"{trial}\n\n{hint}", as_json)
        elif as_json:
            _print_json(found.listing(sort="value"))
        else:
            terminal.show_trials(found.trials, terminal.console())


@app.command()
def plot(
    experiment: Id,
    out: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Write the figure to this file: .pdf, .svg, .png, ..."),
    ],
    metric: Annotated[
        str | None,
        typer.Option(
            help="A metric that training logged, such as valid/accuracy; default: what the "
            "experiment ranks by, on validation data."
        ),
    ] = None,
    log: Annotated[
        bool | None,
        typer.Option(
            "--log/--linear",
            help="The axis of values; default: logarithmic where values span much.",
        ),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Draw the learning curves of each arm's best trial, with the band of its seeds."""
    with connect(url, as_json) as client:
        figure = client.experiment(experiment).plot(metric, log=log)
        from eigensweep.workers.shared import figures

        try:
            figures.write(figure, out)
        except ValueError as error:  # matplotlib's, on the format
            raise InputError(f"{out}: {error}") from error
        _print({"file": str(out)}, lambda about: about["file"], as_json)


@app.command()
def pareto(
    experiment: Id,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="What the metric is weighed against: parameters, seconds, or another metric of "
            "the task; repeatable. Default: what the spec says, else parameters."
        ),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the Pareto front: a small loss against few parameters, or against seconds."""
    with connect(url, as_json) as client:
        found = client.experiment(experiment).pareto(*(against or []))
        _print(found, str, as_json)


@app.command()
def race(experiment: Id, url: Url = None, as_json: AsJson = False) -> None:
    """Show the race of an experiment: which trials got more seeds, and who leads."""
    with connect(url, as_json) as client:
        _print(client.experiment(experiment).race(), str, as_json)


@app.command()
def watch(experiment: Id, url: Url = None, as_json: AsJson = False) -> None:
    """Watch an experiment until it is over: live bars on a terminal, else a line for each event."""
    with connect(url, as_json) as client:
        _watch(client.experiment(experiment), as_json)


def _watch(experiment: Experiment, as_json: bool) -> None:
    try:
        if as_json:
            for event in experiment.events():
                typer.echo(json.dumps(asdict(event)))
            typer.echo(json.dumps(experiment.refresh().content))
        else:
            screen = terminal.console()
            terminal.follow(experiment, screen)
            terminal.show_trials(experiment.trials, screen)
            words = summaries.format_experiment(experiment.content, experiment.connection.url)
            typer.echo(words)
    except KeyboardInterrupt:
        typer.echo(
            f"{experiment.id} continues; watch it with: eigensweep watch {experiment.id}", err=True
        )
        raise typer.Exit(INTERRUPTED) from None
    if experiment.state != "completed":
        raise typer.Exit(FAILURE)


@app.command()
def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="Two or more of: EXPERIMENT/NUMBER, a trial; EXPERIMENT/ARM, the arm's best "
            "trial; EXPERIMENT, its best trial.",
        ),
    ],
    metric: Annotated[
        str | None, typer.Option(help="The metric; default: what each experiment ranks by.")
    ] = None,
    effort: Annotated[
        bool,
        typer.Option(
            "--effort",
            help="Compare arms at equal tuning effort: the best of so many trials, on test data.",
        ),
    ] = False,
    smallest: Annotated[
        float | None,
        typer.Option(
            help="The smallest difference of interest: sides that differ by no more are "
            "equivalent, and the answer says what it takes to decide it."
        ),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Compare trials, arms or experiments seed by seed: difference, interval, p-value, effect."""
    with connect(url, as_json) as client:
        if effort:
            found = client.compare_effort(*names, metric=metric)
        else:
            found = client.compare(*names, metric=metric, smallest=smallest)
        if as_json:
            _print_json(found)
        elif effort:
            terminal.show_effort(found, terminal.console())
        else:
            terminal.show_comparison(found, terminal.console())


@app.command()
def importance(
    experiment: Id,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show how much each searched parameter matters, within each arm."""
    with connect(url, as_json) as client:
        found = client.experiment(experiment).importance()
        if as_json:
            _print_json(found)
        else:
            rows = answers.make_share_rows(found)
            terminal.show_rows(answers.SHARE_HEADS, rows, terminal.console())


@app.command(rich_help_panel=CONTROL)
def pause(experiments: Ids, url: Url = None, as_json: AsJson = False) -> None:
    """Pause experiments: running trials commit and give their places back; nothing is lost."""
    _act("pause", experiments, url, as_json)


@app.command(rich_help_panel=CONTROL)
def resume(experiments: Ids, url: Url = None, as_json: AsJson = False) -> None:
    """Queue paused experiments again: their trials go on from their commits, bit for bit."""
    _act("resume", experiments, url, as_json)


@app.command(rich_help_panel=CONTROL)
def cancel(experiments: Ids, url: Url = None, as_json: AsJson = False) -> None:
    """Cancel experiments: running trials stop, finished trials stay."""
    _act("cancel", experiments, url, as_json)


@app.command(  # a priority may be negative
    rich_help_panel=CONTROL, context_settings={"ignore_unknown_options": True}
)
def prioritize(
    experiment: Id,
    priority: Annotated[int, typer.Argument(help="Higher ones come first; 0 is usual.")],
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Give an experiment another priority: higher ones start first, and have places first."""
    with connect(url, as_json) as client:
        content = client.experiment(experiment).prioritize(priority).content
        _print(content, summaries.format_queue, as_json)


@app.command(rich_help_panel=CONTROL)
def retry(experiments: Ids, url: Url = None, as_json: AsJson = False) -> None:
    """Try the failed trials of experiments that are over again, from their last commits."""
    _act("retry", experiments, url, as_json)


@app.command(rich_help_panel=CONTROL)
def archive(experiments: Ids, url: Url = None, as_json: AsJson = False) -> None:
    """Leave experiments that are over out of lists; nothing of them is removed."""
    _act("archive", experiments, url, as_json)


@app.command(rich_help_panel=CONTROL)
def unarchive(experiments: Ids, url: Url = None, as_json: AsJson = False) -> None:
    """Show archived experiments in lists again."""
    _act("unarchive", experiments, url, as_json)


@app.command(rich_help_panel=CONTROL)
def delete(
    experiments: Ids,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them for good.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Remove experiments that are over for good: runs, checkpoints, studies and records."""
    if not yes:
        words = "delete removes runs, checkpoints and records for good: say --yes"
        problem = {"title": "It was not confirmed", "detail": words}
        fail(f"error: {words}", problem, as_json, BAD_INPUT)
    _act("delete", experiments, url, as_json)


def _act(action: str, ids: list[str], url: str | None, as_json: bool) -> None:
    """Do something to each experiment; fail if one of them was refused."""
    with connect(url, as_json) as client:
        ids = [client.find_id(each) for each in ids]
        found = client.act(action, *ids, confirm=action == "delete")
        if as_json:
            _print_json(found)
        for each in found if not as_json else ():
            if each["problem"] is None:
                typer.echo(f"{each['id']} is {each['state'].replace('_', ' ')}")
            else:
                typer.echo(f"error: {each['problem']}", err=True)
        if any(each["problem"] is not None for each in found):
            raise typer.Exit(FAILURE)


@app.command(rich_help_panel=CONTROL)
def extend(
    experiment: Id,
    settings: Settings = None,
    follow: Follow = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Give an experiment that is over more to do: more trials, a wider space, a longer budget."""
    with connect(url, as_json) as client:
        found = client.experiment(experiment).extend(**parse_settings(settings or []))
        _tell(found, follow, as_json)


@app.command(rich_help_panel=CONTROL)
def fork(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT[/TRIAL]",
            help="An experiment: its id or the beginning of one, its name, or 'last'; or one of "
            "its trials, such as 1m7xnz0qe2nqc/18.",
        ),
    ],
    settings: Settings = None,
    follow: Follow = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Post the spec of an experiment again, with changes; results that exist are taken over.

    With a trial, its configuration alone: `fork ID/18 --set replicates=5` trains more seeds of it.
    """
    with connect(url, as_json) as client:
        _tell(client.fork(experiment, **parse_settings(settings or [])), follow, as_json)


@app.command(rich_help_panel=PAPERS)
def analyse(
    name: Annotated[
        str, typer.Argument(help="The kind of analysis; `eigensweep analyses` lists the kinds.")
    ],
    trials: Annotated[
        list[str] | None,
        typer.Option("--trial", metavar="EXPERIMENT/NUMBER", help="A finished trial; repeatable."),
    ] = None,
    experiments: Annotated[
        list[str] | None,
        typer.Option(
            "--experiment", metavar="EXPERIMENT", help="A finished experiment; repeatable."
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="NAME=VALUE",
            help="An option of the analysis; the value is YAML; repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder for the numbers (JSON, CSV) and figures (PNG, SVG)."),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Redraw a figure of the papers from finished trials, or from matrices alone."""
    with connect(url, as_json) as client:
        subjects = [parse_trial(trial) for trial in trials or []]
        subjects += [{"experiment": experiment} for experiment in experiments or []]
        settings = parse_options(options or [])
        if out is not None:
            make_folder(out)
        analyses = [client.analyse(name, **subject, **settings) for subject in subjects or [{}]]
        for analysis in analyses:
            _wait_for(analysis)
            paths = [] if out is None else analysis.save(out)
            words = summaries.format_analysis(analysis.content, paths)
            typer.echo(json.dumps(analysis.content) if as_json else words)
        if any(analysis.state == "failed" for analysis in analyses):
            raise typer.Exit(FAILURE)


def _wait_for(analysis: Analysis) -> None:
    try:
        analysis.wait()
    except AnalysisFailedError:
        pass  # `format_analysis` prints the error
    except KeyboardInterrupt:
        typer.echo(
            f"analysis {analysis.id} continues; look at it with: GET {analysis.path}", err=True
        )
        raise typer.Exit(INTERRUPTED) from None


@app.command(rich_help_panel=PAPERS)
def analyses(name: CatalogueName = None, url: Url = None, as_json: AsJson = False) -> None:
    """List the kinds of analyses, or show the options of one."""
    _catalogue("analysis-kinds", name, url, as_json)


@app.command(rich_help_panel=PAPERS)
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="A table or figure, such as enrnn/figure-2; `--list` shows all."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="All that this machine can do, and one page of it.")
    ] = False,
    list_only: Annotated[
        bool, typer.Option("--list", help="Show the tables and figures, and a guess of their cost.")
    ] = False,
    budget: Annotated[
        str, typer.Option(help="short: about 20 minutes on two cores at most; full: the paper's.")
    ] = "short",
    out: Annotated[
        Path | None,
        typer.Option(help="The folder for the reports (HTML, Markdown, JSON, SVG)."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The Markdown page of all results that are kept, with pictures beside it. With "
            "--all, docs/reproduction.md if nothing is given.",
        ),
    ] = None,
    page_only: Annotated[
        bool,
        typer.Option("--page-only", help="Only make the page again: no service, no training."),
    ] = False,
    results_only: Annotated[
        bool,
        typer.Option(
            "--results-only",
            help="Only keep the results of what has finished in EIGENSWEEP_HOME: no service.",
        ),
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where results are kept, a file for each suite, and where --serve takes them up "
            "from. With a page, the folder `results` among its pictures if nothing is given.",
        ),
    ] = None,
    note: Annotated[
        str | None,
        typer.Option(help="What else ran on this machine, for readers of the results."),
    ] = None,
    own_service: Annotated[
        bool,
        typer.Option("--serve", help="Start a service if none runs, and end it at the end."),
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Measure a table or figure of a paper again, and report what holds. It resumes where it was.

    What was finished before is not run again: after any stop, the same command goes on.
    """
    from eigensweep.service.command import reproduce as work

    screen = terminal.console()
    if list_only:
        with connect_or_answer_here(url, as_json) as client:
            if as_json:
                _print_json(client.get("/v1/reproduction-suites"))
            else:
                work.show_list(client, screen)
        return
    if every or page_only or results_only:
        page = page or Path("docs/reproduction.md")
    if page is not None and results is None:
        results = page.parent / page.stem / "results"
    if (page_only or results_only) and page is not None and results is not None:
        make_folder(results)
        if results_only:
            _keep_results(results, note, as_json)
        if page_only:
            _write_page(results, page, as_json)
        return
    if every == (name is not None):
        words = "give the name of a table or figure, or --all; --list shows the names"
        fail(f"error: {words}", {"title": "The input cannot be read", "detail": words}, as_json, 2)
    with connect(url, as_json) as found, ExitStack() as stack:
        for folder in (out, page and page.parent, results):
            if folder is not None:
                make_folder(folder)
        client = found
        if own_service:
            client = stack.enter_context(work.service_of_our_own(screen, results))
        names = work.choose(client, budget) if name is None else [name]
        try:
            ended = work.follow(client, names, budget, screen, quiet=as_json)
        except KeyboardInterrupt:
            typer.echo("the experiments continue; the same command follows them again", err=True)
            raise typer.Exit(INTERRUPTED) from None
        if out is not None:
            for each in ended:
                if each.state == "finished":
                    each.save(out)
        if results is not None:
            work.save_results(client, budget, results, note)
        if page is not None and results is not None:
            _write_page(results, page, as_json)
        if as_json:
            _print_json([each.content for each in ended])
        else:
            work.show_end(client, ended, out, page, screen)
        if any(each.state != "finished" for each in ended):
            raise typer.Exit(FAILURE)


def _keep_results(results: Path, note: str | None, as_json: bool) -> None:
    """Keep the results of the home folder, or end with why that is not possible."""
    from sqlalchemy.exc import SQLAlchemyError

    from eigensweep.service.command import reproduce as work

    try:
        written = work.keep_finished(results, note)
    except (OSError, ValueError, SQLAlchemyError) as error:
        words = str(error)
        fail(f"error: {words}", {"title": "No results", "detail": words}, as_json, FAILURE)
    for path in written:
        typer.echo(f"written: {path}")


def _write_page(results: Path, page: Path, as_json: bool) -> None:
    """Make the page of all results in a folder, or end with what is wrong with them."""
    from eigensweep.workers.reports.book import make_page

    try:
        make_page(results, page)
    except (OSError, ValueError) as error:
        words = str(error)
        fail(f"error: {words}", {"title": "The page cannot be made", "detail": words}, as_json, 2)


@app.command(rich_help_panel=KNOWN)
def models(name: CatalogueName = None, url: Url = None, as_json: AsJson = False) -> None:
    """List the models, or show the fields of one that a search may vary."""
    _catalogue("models", name, url, as_json)


@app.command(rich_help_panel=KNOWN)
def tasks(name: CatalogueName = None, url: Url = None, as_json: AsJson = False) -> None:
    """List the tasks, or show the fields of one that an experiment may set."""
    _catalogue("tasks", name, url, as_json)


@app.command(rich_help_panel=KNOWN)
def presets(name: CatalogueName = None, url: Url = None, as_json: AsJson = False) -> None:
    """List the presets, or print one as the YAML that `submit` takes."""
    _catalogue("presets", name, url, as_json)


@app.command(rich_help_panel=KNOWN)
def schema() -> None:
    """Print the JSON Schema of a spec, for editors that check a file while it is written."""
    from eigensweep.search_spaces.editor_schema import make_editor_schema

    _print_json(make_editor_schema())


@app.command(rich_help_panel=OPERATION)
def doctor(url: Url = None, as_json: AsJson = False) -> None:
    """Look at all that the service needs, and say what to do where something is wrong.

    It works with and without a running service. Exit code 1: there is a problem.
    """
    from eigensweep.service.command.doctor import print_findings

    if not print_findings(url, as_json, terminal.console()):
        raise typer.Exit(FAILURE)


def _catalogue(kind: str, name: str | None, url: str | None, as_json: bool) -> None:
    with connect_or_answer_here(url, as_json) as client:
        content = client.get(f"/v1/{kind}/{quote(name)}" if name else f"/v1/{kind}")
        if as_json:
            _print_json(content)
        elif name is None:
            heads, rows = summaries.make_catalogue_rows(kind, content["items"])
            terminal.show_rows(heads, rows, terminal.console())
            if kind == "presets":
                typer.echo("`eigensweep presets NAME` prints one in full, with its remarks")
        else:
            typer.echo(summaries.format_catalogue_entry(kind, content))


app.command("nodes", rich_help_panel=OPERATION)(nodes.show_nodes)
app.command("du", rich_help_panel=OPERATION)(storage.show_use)
app.command("prune", rich_help_panel=OPERATION)(storage.prune)
app.command("backup", rich_help_panel=OPERATION)(backup.back_up)
app.command("restore", rich_help_panel=OPERATION)(backup.restore)
app.command("audit", rich_help_panel=OPERATION)(accounts.list_audit)
app.add_typer(data_command.data, rich_help_panel=KNOWN)
app.add_typer(cluster_command.cluster, rich_help_panel=OPERATION)
app.add_typer(accounts.token, rich_help_panel=OPERATION)
app.add_typer(accounts.user, rich_help_panel=OPERATION)


if __name__ == "__main__":
    main()
