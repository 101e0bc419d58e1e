"""Which parameters of a search do not fit the configs: unknown paths, and refused values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel, ValidationError

from eigensweep.models.base import ModelConfig
from eigensweep.search_spaces.config_fields import list_fields, replace_fields
from eigensweep.search_spaces.errors import (
    ParameterValueError,
    SpecError,
    UnknownParameterError,
    did_you_mean,
    end_of_sentence,
    shorten,
)
from eigensweep.search_spaces.parameters import Choice, Integer, Parameter, Real, Scalar
from eigensweep.search_spaces.spec import ExperimentSpec


def find_misfits(spec: ExperimentSpec) -> Iterator[SpecError]:
    """Yield each parameter whose path no config of its arm has, or whose value a field refuses."""
    seen = set()
    for index, arm in enumerate(spec.arms_):
        assert arm.optimizer is not None
        sections: dict[str, BaseModel] = {
            "model": arm.model,
            "optimizer": arm.optimizer,
            "task": spec.task,
            "training": spec.training,
        }
        names = {"model": arm.model.name, "task": spec.task.name}
        for path, axis in arm.space.items():
            place = place_of(spec, index, path)
            section, _, field = path.partition(".")
            if section not in sections or field not in list_fields(sections[section]):
                others = [arm.label for arm in spec.arms_ if _has(arm.model, path)]
                error: SpecError | None = _unknown_parameter(place, path, sections, names, others)
            elif path in ("model.name", "task.name"):
                error = _name_parameter(place, path)
            else:
                error = _first_refusal(place, path, axis, sections[section], names.get(section))
            if error is not None and str(error) not in seen:
                seen.add(str(error))
                yield error


def place_of(spec: ExperimentSpec, index: int, path: str) -> str:
    """Return the place in the spec where a parameter of arm number `index` is written."""
    if spec.arms is not None and path in spec.arms[index].space:
        return f"arms.{index}.space.{shorten(path)}"
    return f"search.space.{shorten(path)}"


def _has(model: ModelConfig, path: str) -> bool:
    section, _, field = path.partition(".")
    return section == "model" and field in list_fields(model)


def _unknown_parameter(
    place: str,
    path: str,
    sections: Mapping[str, BaseModel],
    names: Mapping[str, str],
    others: Sequence[str],
) -> SpecError:
    """Return the error about a path that an arm has not; `others` are the arms that have it."""
    section, _, field = path.partition(".")
    everything = {s: [f"{s}.{f}" for f in list_fields(each)] for s, each in sections.items()}
    if section not in sections:
        known = [known for paths in everything.values() for known in paths]
        return UnknownParameterError(
            place,
            "a parameter's path begins with "
            f"{', '.join(f'{s}.' for s in sections)}; '{shorten(path)}' does not"
            f"{did_you_mean(path, known)}",
            expected="section.field",
            got=shorten(path),
            available=list(sections),
        )
    has = [known for known in everything[section] if known not in ("model.name", "task.name")]
    if items := [known for known in has if known.startswith(f"{path}.")]:
        return UnknownParameterError(
            place,
            f"'{path}' is a list; vary its items one by one: {', '.join(items)}",
            expected="an item of the list",
            got=path,
            available=items,
        )
    hint = did_you_mean(path, has)
    if others:
        hint = f"; {others[0]} has it: put it into the 'space' of that arm"
    return UnknownParameterError(
        place,
        f"{names.get(section, section)} has no '{shorten(field)}'; it has "
        f"{', '.join(repr(known) for known in has)}{hint}",
        expected=f"a field of {names.get(section, section)}",
        got=shorten(path),
        available=has,
    )


def _name_parameter(place: str, path: str) -> SpecError:
    instead = (
        "compare models with 'arms', one for each model"
        if path == "model.name"
        else "an experiment has one task; post one experiment for each task"
    )
    return UnknownParameterError(place, f"'{path}' cannot vary in a search: {instead}", got=path)


def _first_refusal(
    place: str, path: str, axis: Parameter, config: BaseModel, name: str | None
) -> SpecError | None:
    """Return the error about the first value that the field refuses, None if it takes all."""
    field = path.partition(".")[2]
    named = {} if name is None else {"name": name}
    for value in _values_to_try(axis):
        changed = replace_fields(vars(config), {field: value})
        try:
            type(config).model_validate({**named, **changed})
        except ValidationError as error:
            said = next(
                (e for e in error.errors() if changed.keys() & set(e["loc"][:1])), error.errors()[0]
            )
            wish = end_of_sentence(str(said["msg"]))
            hint = (
                "; a range of integers says type: integer"
                if isinstance(axis, Real) and "integer" in wish
                else ""
            )
            return ParameterValueError(
                place,
                f"{name or path.partition('.')[0]} refuses {field} = {shorten(value)!r}: "
                f"it {wish}{hint}",
                expected=wish,
                got=shorten(value),
            )
    return None


def _values_to_try(axis: Parameter) -> Iterator[Scalar]:
    if isinstance(axis, Choice):
        yield from axis.values
        return
    yield from axis.ends()
    size = axis.size()
    if isinstance(axis, Integer) or size is not None:
        yield axis.value(1)
    else:
        yield axis.low + 0.382 * (axis.high - axis.low)
