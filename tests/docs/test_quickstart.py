"""The quickstarts, typed word for word as a reader would, and compared with what the page says comes out.

Only the ports differ: free ones take the place of the page's, so that nothing else on the machine is met.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.docs.pages import ROOT, Block, Page, page

PORTS: Final = ("8080", "8081", "9000")
READY_S: Final = 60.0
COMMAND_S: Final = 120.0
PATH: Final = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"


@dataclass(slots=True)
class Desk:
    """A reader's desk: a folder with the configuration, terminals, and free ports for the page's."""

    folder: Path
    ports: Mapping[str, str]
    terminals: list[subprocess.Popen[str]] = field(default_factory=list)

    def ported(self, text: str) -> str:
        return re.sub(r"\b(8080|8081|9000)\b", lambda found: self.ports[found[1]], text)

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": PATH, "HOME": str(self.folder), "LANG": "C.UTF-8", "COLUMNS": "200"}

    def start(self, command: str) -> None:
        """Run a command in a terminal of its own until it says that it accepts connections."""
        words = command.split()
        if words == ["safepost", "sandbox"]:
            words += ["--listen", f"127.0.0.1:{self.ports['9000']}"]
        terminal = subprocess.Popen(
            words,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.terminals.append(terminal)
        assert terminal.stdout is not None
        said = []
        for line in terminal.stdout:
            said.append(line)
            if re.match(r"sandbox listening on |admin on ", line):
                return
        pytest.fail(f"{command} ended: {''.join(said)}")

    def type(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.ported(command)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def leave(self) -> None:
        for terminal in self.terminals:
            terminal.send_signal(signal.SIGTERM)
        for terminal in self.terminals:
            with contextlib.suppress(subprocess.TimeoutExpired):
                terminal.communicate(timeout=READY_S)
            if terminal.poll() is None:
                terminal.kill()
                terminal.communicate()


def _free_ports() -> dict[str, str]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in PORTS]
        return {name: str(sock.getsockname()[1]) for name, sock in zip(PORTS, held, strict=True)}


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path, _free_ports())
    (tmp_path / "config.yaml").write_text(made.ported((ROOT / "config.yaml").read_text()))
    try:
        yield made
    finally:
        made.leave()


def _pattern(expected: str) -> re.Pattern[str]:
    """`...` stands for the rest of a line or a part of it; on a line of its own, for any lines."""
    lines = []
    for line in expected.splitlines():
        if line == "...":
            lines.append(r"(?:.*\n)*?")
        else:
            lines.append(".*".join(re.escape(part) for part in line.split("...")) + r"\n?")
    return re.compile("".join(lines))


def _part(of: Page) -> list[Block]:
    return list(Page(of.name, of.part("quickstart")).blocks())


@pytest.mark.parametrize("name", ["README.md", "docs/quickstart.md"])
def test_quickstart_does_what_it_says(name: str, desk: Desk) -> None:
    shown = ""
    for block in _part(page(name)):
        if block.info == "sh background":
            desk.start(block.text)
        elif block.info == "sh":
            shown = desk.type(block.text).replace("\r", "")
        else:
            assert _pattern(desk.ported(block.text)).search(shown), f"{shown}\nis not\n{block.text}"


# --- languages ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Language:
    """How a page's program is run. `probe` ends with 0 where the machine can run it."""

    info: str
    file: str
    command: tuple[str, ...]
    probe: tuple[str, ...]

    @property
    def is_here(self) -> bool:
        if shutil.which(self.probe[0]) is None:
            return False
        return subprocess.run(self.probe, capture_output=True, timeout=COMMAND_S, check=False).returncode == 0


LANGUAGES: Final = (
    Language("python requests", "pay.py", (sys.executable, "pay.py"), (sys.executable, "--version")),
    Language("python httpx", "pay.py", (sys.executable, "pay.py"), (sys.executable, "--version")),
    Language("js node", "pay.mjs", ("node", "pay.mjs"), ("node", "--version")),
    Language("php php", "pay.php", ("php", "pay.php"), ("php", "-r", "curl_init();")),
    Language("java java", "Pay.java", ("java", "Pay.java"), ("java", "-version")),
    Language("go go", "main.go", ("go", "run", "main.go"), ("go", "version")),
)


def _program(info: str) -> str:
    return next(block.text for block in page("docs/quickstart.md").blocks() if block.info == info)


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.info)
@pytest.mark.slow
def test_program_of_each_language_pays_once_though_the_answer_is_lost(language: Language, desk: Desk) -> None:
    if not language.is_here:
        pytest.skip(f"this machine has nothing to run {language.info} with")
    desk.start("safepost sandbox")
    desk.start("safepost run")
    (desk.folder / language.file).write_text(desk.ported(_program(language.info)))

    done = subprocess.run(
        [*language.command, "ORDER-9~close_after"],
        cwd=desk.folder,
        env=desk.environment
        | {"GOFLAGS": "-mod=mod", "GO111MODULE": "off", "GOCACHE": str(desk.folder / "go")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    charges = desk.type("curl -s http://127.0.0.1:9000/_sandbox/ledger").count('"kind":"charge"')

    assert done.stdout.split()[:2] == ["200", "executed"], done.stdout + done.stderr
    assert charges == 1


def test_programs_cover_the_readme_s_languages() -> None:
    rows = re.findall(r"^\| (Python requests|Python httpx|Node|Java|PHP|Go)\b", page("README.md").text, re.M)

    assert len(rows) == len(LANGUAGES)
