"""The page of all fields: each field once, with its meaning."""

from __future__ import annotations

import re

import pytest

from eigensweep.models import MODELS
from eigensweep.models.base import ModelConfig
from eigensweep.models.network import NetworkConfig
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.tables import PAGE, PARAMETERS, SECTIONS, markdown, replace_tables
from eigensweep.tasks import TASKS

TEXT = markdown()


def section(heading: str) -> str:
    """Return what stands between a heading and the next one."""
    return re.split(r"^##+ ", TEXT.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> list[str]:
    return re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)


def ours(registry) -> dict[str, type]:
    return {
        name: cls.Config
        for name, cls in registry.items()
        if cls.__module__.startswith("eigensweep.")
    }


def test_a_row_says_what_a_field_takes_and_its_default():
    assert "| `negative_fraction` | number, 0 to 1, or null |  |" in section("`model: scornn`")
    assert "| `delay` | integer, 1 to 1,000,000 | `2000` |" in section("`task: copying`")
    assert "| `space` | object |  |" in section("`search`")


@pytest.mark.parametrize("name", ours(MODELS))
def test_the_section_of_a_model_has_its_own_fields_only(name):
    config, text = ours(MODELS)[name], section(f"`model: {name}`")
    shared = NetworkConfig if issubclass(config, NetworkConfig) else ModelConfig
    own = [field for field in config.model_fields if field not in shared.model_fields]
    assert set(rows(text)) >= set(own)
    for field in set(rows(text)) - set(own):
        assert config.model_fields[field] != shared.model_fields[field]
    assert f"(#every-{'network' if shared is NetworkConfig else 'model'})" in text


def test_fields_that_all_models_have_are_listed_once():
    assert rows(section("Every model")) == ["hidden_size", "parameters"]
    networks = rows(section("Every network"))
    assert "encoder_init" in networks
    assert TEXT.count("| `encoder_init` |") == 1
    assert "`encoder_init` `tiny_normal`" in section("`model: irnn`")


@pytest.mark.parametrize("name", ours(TASKS))
def test_the_section_of_a_task_has_all_its_fields(name):
    fields = [field for field in ours(TASKS)[name].model_fields if field != "name"]
    assert rows(section(f"`task: {name}`")) == fields


def test_no_table_is_empty_and_every_field_has_a_meaning():
    assert not re.search(r"\| --- \|\n\n", TEXT)
    configs = [ExperimentSpec, *SECTIONS.values(), *PARAMETERS.values()]
    configs += [*ours(MODELS).values(), *ours(TASKS).values()]
    silent = [
        f"{config.__name__}.{name}"
        for config in configs
        for name, field in config.model_fields.items()
        if not field.description
        and not (name == "name" and config in (*ours(MODELS).values(), *ours(TASKS).values()))
    ]
    assert silent == []


def test_every_link_leads_to_a_heading():
    slug = lambda heading: re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")  # noqa: E731
    anchors = {slug(heading) for heading in re.findall(r"^##+ (.+)$", TEXT, flags=re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= anchors


def test_only_what_is_between_the_marks_of_a_page_is_replaced(tmp_path):
    page = tmp_path / PAGE.rpartition("/")[2]
    page.write_text("before\n<!-- fields -->\n\nold\n<!-- end of fields -->\nafter\n")
    replace_tables(page)
    expected = f"before\n<!-- fields -->\n\n{TEXT}\n<!-- end of fields -->\nafter\n"
    assert page.read_text() == expected
