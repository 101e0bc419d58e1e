"""The command line. Runs in a user's terminal and talks to the service over HTTP.

It imports no torch, Ray or MLflow, so it starts at once. Exit codes: 0 success; 1 failure (the
experiment failed or was cancelled, the service is away); 2 bad input; 130 Ctrl-C.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

import typer

from eigensweep.client import Analysis, AnalysisFailedError, Experiment
from eigensweep.client.answers import answers
from eigensweep.client.answers.tables import Table
from eigensweep.client.connection import TOKEN_FILE
from eigensweep.client.shapes import DoneJson
from eigensweep.client.spec_file import (
    InputError,
    SubjectJson,
    parse_options,
    parse_settings,
    parse_trial,
)
from eigensweep.client.trial import Trial
from eigensweep.command import accounts, backup, data, nodes, storage, terminal
from eigensweep.command.frame import (
    FAILURE,
    INTERRUPTED,
    App,
    Call,
    Url,
    command,
    find_extra,
    make_folder,
)
from eigensweep.protocol.states import OUTCOMES, Action

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
        help="An experiment: its id or the beginning of one, its name, or 'last', the newest of "
        "all users.",
    ),
]
TrialName = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT[/TRIAL]",
        help="A trial, such as 1m7xnz0qe2nqc/18; default: the best.",
    ),
]
Ids = Annotated[
    list[str],
    typer.Argument(
        metavar="EXPERIMENT...",
        help="Experiments: ids or beginnings of them, names, or 'last', the newest of all users.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with your token, which only you can read; default: EIGENSWEEP_TOKEN_FILE, "
        "else the token in EIGENSWEEP_TOKEN.",
    ),
]
Follow = Annotated[bool, typer.Option("--follow", help="Watch it until it is over.")]
Limit = Annotated[int, typer.Option(min=1, help="The largest number of rows.")]
CatalogueName = Annotated[str | None, typer.Argument(help="The name of one, to show it in full.")]

CONTROL, PAPERS, KNOWN, OPERATION = "Control", "Papers", "What there is", "Operation"
"""Where `--help` shows what does not stand in its first panel."""

app = typer.Typer(
    name="eigensweep",
    cls=App,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; where a package is not installed, say which extra brings it."""
    for stream in (sys.stdout, sys.stderr):  # a name may have letters that they cannot show
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except ModuleNotFoundError as error:
        extra = find_extra(error.name)
        if extra is None:
            raise
        words = f"error: this needs '{error.name}', which is not installed: "
        sys.exit(f"{words}pip install 'eigensweep[{extra}]'")


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


@command(app)
def submit(
    call: Call,
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
) -> None:
    """Post an experiment."""
    spec = call.client.read_spec(source, parse_settings(settings or []))
    _tell(call, call.client.submit(spec, notify=notify or ()), follow)


def _tell(call: Call, experiment: Experiment, follow: bool) -> None:
    """Say that an experiment is queued, or watch it until it is over."""
    for words in experiment.content.get("warnings") or ():
        typer.echo(f"warning: {words}", err=True)
    if follow:
        _watch(call, experiment)
        return
    words = f"{experiment.id} {experiment.name} is {experiment.state}"
    more = f"watch it with: eigensweep watch {experiment.id}"
    call.tell(experiment.content, lambda _: f"{words}\n{more}")


@app.command()
def serve() -> None:
    """Run the service until Ctrl-C. EIGENSWEEP_* variables configure it."""
    from eigensweep.service.process.serve import main as run_service

    sys.exit(run_service())


@command(app)
def preview(call: Call, source: Source, settings: Settings = None) -> None:
    """Show the trials, sizes and time of an experiment without posting it."""
    near = call.near
    call.tell(near.preview(near.read_spec(source, parse_settings(settings or []))))


@command(app, "list")
def list_experiments(
    call: Call,
    state: Annotated[str | None, typer.Option(help="Only experiments in this state.")] = None,
    project: Annotated[str | None, typer.Option(help="Only experiments of this project.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Only experiments with this text in their name.")
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only experiments of this user.")] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Only experiments with this tag; repeatable."),
    ] = None,
    archived: Annotated[
        bool, typer.Option("--archived", help="Also experiments that are archived.")
    ] = False,
    limit: Limit = 20,
) -> None:
    """List experiments, newest first."""
    chosen = {"state": state, "project": project, "name": name, "owner": owner, "tag": tag}
    found = call.client.experiments(limit, **chosen, archived=archived or None)
    if not found and not any(chosen.values()):
        words = "no experiment to list; post one: eigensweep submit quickstart --follow"
        call.tell(found, lambda _: words)
    else:
        call.tell(found, lambda _: Table(answers.LIST_HEADS, map(answers.make_list_row, found)))
        if len(found) == limit:
            typer.echo(f"the newest {limit}; --limit shows more", err=True)


@command(app)
def show(call: Call, experiment: Id) -> None:
    """Show one experiment: state, progress, best trial, links."""
    content = call.client.experiment(experiment).content
    call.tell(content, lambda found: answers.format_experiment(found, call.client.url))


@command(app)
def weights(
    call: Call,
    trial: TrialName,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Write the weights to this file.")],
    last: Annotated[bool, typer.Option("--last", help="The last weights, not the best.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of this seed; default: the first.")] = None,
) -> None:
    """Write a trial's weights to a file that `torch.load(FILE, weights_only=True)` reads."""
    from eigensweep.training.weights import NoWeightsError

    chosen = _find_trial(call, trial, "weights")
    try:
        kept = chosen.weights("last" if last else "best", seed=seed)
    except NoWeightsError as error:
        call.fail(f"trial {chosen['number']}: {error}", "There are no such weights", FAILURE)
    kept.save(out)
    about = {"trial": chosen["number"], "seed": kept.seed, "step": kept.step, "file": str(out)}
    call.tell(about, "trial {trial}, seed {seed}, step {step}: {file}".format_map)


@command(app)
def logs(call: Call, trial: TrialName) -> None:
    """Show what a trial's process has printed: prints, warnings and logs, the newest of them."""
    chosen = _find_trial(call, trial, "logs")
    text = chosen.logs()
    if not text:
        words = "has printed nothing"
        if any(attempt["lanes"] for attempt in chosen["attempts"]):
            words += " of its own: it trained in an engine, which prints into the logs of Ray"
        typer.echo(f"trial {chosen['number']} {words}", err=True)
    call.tell({"trial": chosen["number"], "text": text}, lambda found: found["text"].rstrip("\n"))


def _find_trial(call: Call, name: str, wanted: Literal["weights", "logs"]) -> Trial:
    """Return the trial that `EXPERIMENT/NUMBER` means, or the best of an experiment."""
    found, number = call.client.find_trial(name)
    if number is None:
        best = found.best
        if best is None and found.is_over:
            words = f"others have {wanted}, too: eigensweep {wanted} '{name}/0'"
            raise InputError(f"no trial of '{name}' was completed; {words}")
        if best is None:
            raise InputError(f"'{name}' has no best trial yet; name one: '{name}/0'")
        number = best["number"]
    return found.trial(number)


@command(app)
def export(
    call: Call,
    experiment: Id,
    optuna: Annotated[
        Path, typer.Option(metavar="FILE", help="A study that optuna-dashboard opens: *.journal.")
    ],
) -> None:
    """Write all trials of an experiment to a file for other programs."""
    if optuna.suffix != ".journal":
        raise InputError(f"{optuna}: a study is exported to a file named *.journal")
    _export(call, call.client.experiment(experiment), optuna)


def _export(call: Call, experiment: Experiment, file: Path) -> None:
    """Write all trials of an experiment to a file, and say so."""
    experiment.export(file)
    about = {"experiment": experiment.id, "file": str(file)}
    call.tell(about, "the trials of {experiment}: {file}".format_map)


@command(app)
def trials(
    call: Call,
    experiment: Id,
    number: Annotated[
        int | None, typer.Argument(help="The number of a trial, to show it in full.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write all trials to this file, by its name: .csv, .parquet, .tex (a table for a "
            "paper) or .journal (a study of Optuna's).",
        ),
    ] = None,
) -> None:
    """Rank an experiment's trials beside the baseline, or show one in full."""
    if out is not None and number is not None:
        raise InputError("--out writes all trials; give either a file or the number of one trial")
    found = call.client.experiment(experiment)
    if out is not None:
        _export(call, found, out)
    elif number is not None:
        hint = "--json has its whole configuration, its reports and its result"
        call.tell(found.trial(number), lambda trial: f"{trial}\n\n{hint}")
    elif call.as_json:
        call.tell(found.listing(sort="value"))
    else:
        found.trials.show(call.screen)


@command(app)
def plot(
    call: Call,
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
) -> None:
    """Draw the learning curves of each arm's best trial, with the band of its seeds."""
    from eigensweep.results import figures

    if not out.suffix:
        raise InputError(f"{out}: the name of a figure ends in its format, such as {out}.svg")
    figure = call.client.experiment(experiment).plot(metric, log=log)
    try:
        figures.write(figure, out)
    except ValueError as error:  # matplotlib's, on the format
        raise InputError(f"{out}: {error}") from error
    call.tell({"file": str(out)}, lambda about: about["file"])


@command(app)
def pareto(
    call: Call,
    experiment: Id,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="What the metric is weighed against: parameters, seconds, or another metric of "
            "the task; repeatable. Default: what the spec says, else parameters."
        ),
    ] = None,
) -> None:
    """List the Pareto front: a small loss against few parameters, or against seconds."""
    call.tell(call.client.experiment(experiment).pareto(*(against or [])))


@command(app)
def race(call: Call, experiment: Id) -> None:
    """Show the race of an experiment: which trials got more seeds, and who leads."""
    call.tell(call.client.experiment(experiment).race())


@command(app)
def watch(call: Call, experiment: Id) -> None:
    """Watch an experiment until it is over: live bars on a terminal, else a line for each event."""
    _watch(call, call.client.experiment(experiment))


def _watch(call: Call, experiment: Experiment) -> None:
    try:
        if call.as_json:
            for event in experiment.events():
                typer.echo(json.dumps(asdict(event)))
            typer.echo(json.dumps(experiment.refresh().content))
        else:
            terminal.follow(experiment, call.screen)
            experiment.trials.show(call.screen)
            typer.echo(answers.format_experiment(experiment.content, call.client.url))
    except KeyboardInterrupt:
        words = f"{experiment.id} continues; watch it with: eigensweep watch {experiment.id}"
        typer.echo(words, err=True)
        raise typer.Exit(INTERRUPTED) from None
    if experiment.state != "completed":
        raise typer.Exit(FAILURE)


@command(app)
def compare(
    call: Call,
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
) -> None:
    """Compare trials, arms or experiments seed by seed: difference, interval, p-value, effect."""
    if effort:
        if smallest is not None:
            words = "--smallest is for a comparison seed by seed; leave out --effort, or it"
            call.fail(words, "The input cannot be read")
        call.tell(call.client.compare_effort(*names, metric=metric))
    else:
        call.tell(call.client.compare(*names, metric=metric, smallest=smallest))


@command(app)
def importance(
    call: Call,
    experiment: Id,
) -> None:
    """Show how much each searched parameter matters, within each arm."""
    call.tell(call.client.experiment(experiment).importance())


def _act(call: Call, action: Action, ids: list[str]) -> None:
    """Do something to each experiment; fail if one of them was refused."""
    found = call.client.act(action, *ids, confirm=action == "delete")
    call.tell(found, partial(_show_deeds, action))
    if any(each["problem"] is not None for each in found):
        raise typer.Exit(FAILURE)


def _show_deeds(action: Action, found: list[DoneJson]) -> None:
    place = {"archive": ", and archived", "unarchive": ", and in lists again"}.get(action, "")
    for each in found:
        if each["problem"] is None:
            known = each["state"] or ("gone" if action == "delete" else "as asked")
            state = known.replace("_", " ")
            typer.echo(f"{each['id']} is {state}{place}")
        else:
            typer.echo(f"error: {each['problem']}", err=True)


def _add_action(action: Action, words: str) -> None:
    """Add the command of an action that needs nothing but experiments."""

    @command(app, action, help=words, rich_help_panel=CONTROL)
    def act(call: Call, experiments: Ids) -> None:
        _act(call, action, experiments)


_add_action(
    "pause", "Pause experiments: running trials commit and give their places back; nothing is lost."
)
_add_action(
    "resume", "Queue paused experiments again: their trials go on from their commits, bit for bit."
)
_add_action("cancel", "Cancel experiments: running trials stop, finished trials stay.")


@command(app, rich_help_panel=CONTROL)
def stop(
    call: Call,
    trial: Annotated[
        str, typer.Argument(metavar="EXPERIMENT/NUMBER", help="A trial that has not ended.")
    ],
) -> None:
    """Stop one trial early: it ends as pruned, and its place goes to the next of its search."""
    found, number = call.client.find_trial(trial)
    if number is None:
        raise InputError(
            f"'{trial}' names no trial; '{trial}/0' would be its first one, and `eigensweep cancel "
            f"{trial}` ends all of it"
        )
    stopped = found.trial(number).stop()
    state = f"is {stopped['state']}" if stopped["state"] in OUTCOMES else "stops within seconds"
    call.tell(stopped, lambda _: f"trial {number} {state}")


@command(
    app,  # a priority may be negative
    rich_help_panel=CONTROL,
    context_settings={"ignore_unknown_options": True},
)
def prioritize(
    call: Call,
    experiment: Id,
    priority: Annotated[int, typer.Argument(help="Higher ones come first; 0 is usual.")],
) -> None:
    """Give an experiment another priority: higher ones start first, and have places first."""
    content = call.client.experiment(experiment).prioritize(priority).content
    call.tell(content, answers.format_queue)


_add_action(
    "retry", "Try the failed trials of experiments that are over again, from their last commits."
)
_add_action("archive", "Leave experiments that are over out of lists; nothing of them is removed.")
_add_action("unarchive", "Show archived experiments in lists again.")
_add_action(
    "deliver", "Send finished experiments to MLflow once more, for example after it lost them."
)


@command(app, rich_help_panel=CONTROL)
def delete(
    call: Call,
    experiments: Ids,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them for good.")] = False,
) -> None:
    """Remove experiments that are over for good: runs, checkpoints and records."""
    if not yes:
        words = "delete removes runs, checkpoints and records for good: say --yes"
        call.fail(words, "It was not confirmed")
    _act(call, "delete", experiments)


@command(app, rich_help_panel=CONTROL)
def extend(
    call: Call,
    experiment: Id,
    settings: Settings = None,
    follow: Follow = False,
) -> None:
    """Give an experiment that is over more to do: more trials, a wider space, a longer budget."""
    found = call.client.experiment(experiment).extend(**parse_settings(settings or []))
    _tell(call, found, follow)


@command(app, rich_help_panel=CONTROL)
def fork(
    call: Call,
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
) -> None:
    """Post the spec of an experiment again, with changes; results that exist are taken over.

    With a trial, its configuration alone: `fork ID/18 --set replicates=5` trains more seeds of it.
    """
    _tell(call, call.client.fork(experiment, **parse_settings(settings or [])), follow)


@command(app, rich_help_panel=PAPERS)
def analyse(
    call: Call,
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
) -> None:
    """Redraw a figure of the papers from finished trials, or from matrices alone."""
    subjects = [parse_trial(trial) for trial in trials or []]
    subjects += [SubjectJson(experiment=experiment) for experiment in experiments or []]
    settings = parse_options(options or [])
    if out is not None:
        make_folder(out)
    found = [
        call.client.analyse(name, **subject, **settings) for subject in subjects or [SubjectJson()]
    ]
    for analysis in found:
        _wait_for(analysis)
        paths = [] if out is None else analysis.save(out)
        words = answers.format_analysis(analysis.content, paths)
        typer.echo(json.dumps(analysis.content) if call.as_json else words)
    if any(analysis.state != "finished" for analysis in found):
        raise typer.Exit(FAILURE)


def _wait_for(analysis: Analysis) -> None:
    try:
        analysis.wait()
    except AnalysisFailedError:
        pass  # `format_analysis` prints the error
    except KeyboardInterrupt:
        typer.echo(
            f"analysis {analysis.id} continues; look at it with: GET {analysis.path}; "
            f"end it with: POST {analysis.path}/cancel",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None


def _add_catalogue(kind: str, panel: str, words: str, *, place: str | None = None) -> None:
    """Add the command that lists what there is of a kind; `place` is where the API has it."""

    @command(app, kind, help=words, rich_help_panel=panel)
    def show_catalogue(call: Call, name: CatalogueName = None) -> None:
        path = f"/v1/{place or kind}"
        if name and not name.strip("."):  # which would ask for the list
            raise InputError(f"expected the name of one of the {kind}, got {name!r}")
        content = call.near.get(f"{path}/{quote(name, safe='')}" if name else path)
        if name:
            call.tell(content, lambda _: answers.format_catalogue_entry(kind, content))
            return
        call.tell(content, lambda _: answers.make_catalogue_table(kind, content["items"]))
        if kind == "presets" and not call.as_json:
            typer.echo("`eigensweep presets NAME` prints one in full, with its remarks")


_add_catalogue(
    *("analyses", PAPERS, "List the kinds of analyses, or show the options of one."),
    place="analysis-kinds",
)


@command(app, rich_help_panel=PAPERS)
def reproduce(
    call: Call,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME...", help="Tables or figures, such as enrnn/figure-2; `--list` shows all."
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="All that this machine can do, and one page of it.")
    ] = False,
    list_only: Annotated[
        bool, typer.Option("--list", help="Show the tables and figures, and a guess of their cost.")
    ] = False,
    budget: Annotated[
        Literal["short", "full"],
        typer.Option(help="short: about 20 minutes on two cores at most; full: the paper's."),
    ] = "short",
    until_decided: Annotated[
        bool,
        typer.Option("--until-decided", help="Add seeds until the primary claim is decided."),
    ] = False,
    core_hours: Annotated[
        float | None,
        typer.Option(help="With --until-decided: core hours that added seeds may take."),
    ] = None,
    most: Annotated[
        int | None, typer.Option(help="With --until-decided: largest number of seeds; 40 if not.")
    ] = None,
    cpus: Annotated[
        float | None,
        typer.Option(help="Cores of a trial: so many seeds of an arm train at once."),
    ] = None,
    gpus: Annotated[
        float | None, typer.Option(help="Train on GPUs: GPUs of a trial, 1 or a share of one.")
    ] = None,
    lanes: Annotated[
        str | None,
        typer.Option(help="Trainings of equal shape side by side on one device: a number or auto."),
    ] = None,
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
            help="Only keep the results of what has finished in EIGENSWEEP_HOME, of all suites or "
            "of those that are named: no service. Of unfinished suites the trials and seeds that "
            "have finished are kept in the folder `unfinished`.",
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
) -> None:
    """Measure a table or figure of a paper again, and report what holds. It resumes where it was.

    What was finished before is not run again: after any stop, the same command goes on.
    """
    from eigensweep.command import reproduce as work

    if names and (list_only or page_only):
        call.fail("--list and --page-only are of all suites: give no name", "There are names")
    if list_only:
        work.show_suites(call)
        return
    if every or page_only or results_only:
        page = page or Path("docs/reproduction.md")
    if page is not None and results is None:
        results = page.parent / page.stem / "results"
    if (page_only or results_only) and page is not None and results is not None:
        if not results_only and not any(results.glob("*.json")):
            words = f"{results} has no results, so the page would be empty: name their folder"
            call.fail(f"{words} with --results", "The input cannot be read")
        make_folder(results)
        made, problems = list[Path](), list[str]()
        if results_only:
            made, problems = work.keep_results_of_home(call, results, note, names or ())
        told = {"written": [*map(str, made)], "page": str(page) if page_only else None}
        call.tell(told, lambda _: "\n".join(f"written: {path}" for path in made) or None)
        if page_only:
            work.write_page(call, results, page)
        work.tell_problems(problems)
        return
    if every == bool(names):
        words = "give the name of a table or figure, or --all; --list shows the names"
        call.fail(words, "The input cannot be read")
    for folder in (out, page and page.parent, results):
        if folder is not None:
            make_folder(folder)
    with (
        work.service_of_our_own(call, results)
        if own_service and not call.url
        else nullcontext(call.client) as client
    ):
        names = names or work.choose(client, budget)
        asked: dict[str, object] = {"core_hours": core_hours, "most": most}
        asked |= {
            "until_decided": until_decided,
            "resources": work.make_resources(cpus, gpus, lanes),
        }
        if until_decided and not call.as_json:
            for each_name in names:
                work.show_plan(client, each_name, budget, call.screen)
        try:
            lives = work.own_service_lives if own_service and not call.url else None
            ended = work.follow(
                client, names, budget, call.screen, quiet=call.as_json, lives=lives, **asked
            )
        except KeyboardInterrupt:
            words = "the experiments continue; the same command follows them again"
            if own_service and not call.url:
                words = "a service that this command started ends; the same command goes on"
            typer.echo(words, err=True)
            raise typer.Exit(INTERRUPTED) from None
        if out is not None:
            for each in ended:
                if each.state == "finished":
                    each.save(out)
        problems = []
        if results is not None:
            problems = work.save_results(client, names, budget, results, note)
        if page is not None and results is not None:
            work.write_page(call, results, page)
        contents = [each.content for each in ended]
        call.tell(contents, lambda _: work.show_end(client, ended, out, page, call.screen))
        work.tell_problems(problems)
        if any(each.state != "finished" for each in ended):
            raise typer.Exit(FAILURE)


_add_catalogue(
    "models", KNOWN, "List the models, or show the fields of one that a search may vary."
)
_add_catalogue(
    "tasks", KNOWN, "List the tasks, or show the fields of one that an experiment may set."
)
_add_catalogue("presets", KNOWN, "List the presets, or print one as the YAML that `submit` takes.")


@app.command(rich_help_panel=KNOWN)
def schema() -> None:
    """Print the JSON Schema of a spec, for editors that check a file while it is written."""
    from eigensweep.search_spaces.editor_schema import make_editor_schema

    call = Call(as_json=True)
    with call.failures():
        call.tell(make_editor_schema())


@command(app, rich_help_panel=OPERATION)
def doctor(call: Call) -> None:
    """Look at all that the service needs, and say what to do where something is wrong.

    It works with and without a running service. Exit code 1: there is a problem.
    """
    from eigensweep.command.doctor import print_findings

    if not print_findings(call):
        raise typer.Exit(FAILURE)


command(app, "nodes", rich_help_panel=OPERATION)(nodes.show_nodes)
command(app, "du", rich_help_panel=OPERATION)(storage.show_use)
command(app, "prune", rich_help_panel=OPERATION)(storage.prune)
command(app, "backup", asks=False, rich_help_panel=OPERATION)(backup.back_up)
command(app, "restore", asks=False, rich_help_panel=OPERATION)(backup.restore)
command(app, "audit", rich_help_panel=OPERATION)(accounts.list_audit)
app.add_typer(data.data, rich_help_panel=KNOWN)
app.add_typer(accounts.token, rich_help_panel=OPERATION)
app.add_typer(accounts.user, rich_help_panel=OPERATION)


if __name__ == "__main__":
    main()
