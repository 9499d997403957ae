"""The image's recipe, read line by line: no engine is needed to see a mistake in it."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from proxy.config import load_settings
from tests.tidy.tree import ROOT

_PATCH_TAG: Final = re.compile(r"\d+\.\d+\.\d+-slim-[a-z]+")


@dataclass(frozen=True, slots=True)
class Step:
    word: str
    rest: str

    @property
    def is_exec_form(self) -> bool:
        return self.rest.startswith("[")

    def arguments(self) -> list[str]:
        return json.loads(self.rest) if self.is_exec_form else shlex.split(self.rest)


def _steps() -> Iterator[Step]:
    held = ""
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if not held and (not line.strip() or line.startswith("#")):
            continue
        held += line.strip()
        if held.endswith("\\"):
            held = f"{held[:-1].rstrip()} "
            continue
        word, _, rest = held.partition(" ")
        yield Step(word, rest.strip())
        held = ""


STEPS: Final = tuple(_steps())


def _stages() -> list[list[Step]]:
    stages: list[list[Step]] = []
    for step in STEPS:
        if step.word == "FROM":
            stages.append([])
        if stages:
            stages[-1].append(step)
    return stages


def _last(word: str) -> Step:
    return [step for step in _stages()[-1] if step.word == word][-1]


def test_base_is_pinned_to_a_patch_release_that_the_product_supports() -> None:
    tag = next(step.rest.partition("=")[2] for step in STEPS if step.word == "ARG")
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    oldest = tuple(map(int, asked.removeprefix(">=").split(".")))

    assert _PATCH_TAG.fullmatch(tag)
    assert tuple(map(int, tag.split("-")[0].split(".")))[:2] >= oldest
    assert all(step.rest.startswith("python:${PYTHON_TAG}") for step in STEPS if step.word == "FROM")


def test_builder_and_image_are_two_stages_on_one_base() -> None:
    first, last = (stage[0].rest for stage in _stages())

    assert first.removesuffix(" AS build") == last


def test_image_runs_as_a_numbered_user_that_is_not_root() -> None:
    user = _last("USER").rest

    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user), "Kubernetes can check numbers only (runAsNonRoot)"


def test_nothing_is_installed_or_copied_after_the_user_has_changed() -> None:
    words = [step.word for step in _stages()[-1]]

    assert not {"COPY", "ADD"} & set(words[words.index("USER") :])


def test_sources_come_by_copy_and_every_one_of_them_exists() -> None:
    copied = [
        name
        for step in STEPS
        if step.word == "COPY" and not step.rest.startswith("--from")
        for name in step.arguments()[:-1]
    ]

    assert "ADD" not in {step.word for step in STEPS}
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_every_copied_source_passes_the_ignore_file() -> None:
    lines = (ROOT / ".dockerignore").read_text().split()
    copied = {
        name.removeprefix("./")
        for step in STEPS
        if step.word == "COPY" and not step.rest.startswith("--from")
        for name in step.arguments()[:-1]
    }

    assert "*" in lines, "everything is left out that is not named"
    assert copied == {line[1:] for line in lines if line.startswith("!")}


def test_commands_get_signals_themselves() -> None:
    assert _last("ENTRYPOINT").is_exec_form
    assert _last("CMD").is_exec_form


def test_image_checks_the_configuration_that_it_starts_with() -> None:
    started = _last("CMD").arguments()[-1]
    checked = [step.arguments() for step in _stages()[-1] if step.word == "RUN" and step.is_exec_form]
    copied = [step.arguments()[-1] for step in _stages()[-1] if step.word == "COPY"]

    assert ["safepost", "check", "-c", started] in checked
    assert started in copied


def test_health_check_asks_the_default_admin_address_without_a_shell() -> None:
    admin = load_settings(ROOT / "config.yaml").admin
    options, _, command = _last("HEALTHCHECK").rest.partition("CMD ")
    program = json.loads(command)[-1]
    compile(program, "healthcheck", "exec")

    assert {"--interval", "--timeout", "--start-period"} <= {part.split("=")[0] for part in options.split()}
    assert f"'{admin.host}', {admin.port}" in program
    assert "'GET', '/healthz'" in program
    assert "timeout=" in program


def test_exposed_ports_are_the_default_ones() -> None:
    settings = load_settings(ROOT / "config.yaml")

    assert set(_last("EXPOSE").rest.split()) == {
        str(settings.listen[0].address.port),
        str(settings.admin.port),
    }


def test_no_secret_and_no_index_is_written_into_the_image() -> None:
    text = (ROOT / "Dockerfile").read_text()

    assert not re.search(r"(?i)(password|token|api_key|secret)\s*=", text)
    assert "index-url" not in text
