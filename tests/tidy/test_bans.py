"""What may not be called, or only where it is named here: clocks, chance, tasks, threads, prints, guesses."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.tidy.tree import Source, called_name, package, real_names, suite, texts

TASKS: Final[dict[str, str]] = {
    "proxy/app.py": "the loops beside the calls: leases, lookups, purge, signals",
    "proxy/calls.py": "an answer before the call ends (W1)",
    "proxy/resolver.py": "a few lookups that wait for the platform at a time, ended with the resolver",
    "proxy/sandbox/play.py": "callers that hang up",
    "proxy/sandbox/webhooks.py": "the events' sender",
    "proxy/stores/redis_engine.py": "a write that a cancelled wait must not cut in half",
    "proxy/stores/redis_guardian.py": "the watch over data that Redis lost (D6)",
    "proxy/stores/redis_listener.py": "what other processes publish",
    "proxy/stores/waiters.py": "the poll for other processes' changes",
    "proxy/wire/connect.py": "address families tried side by side",
    "proxy/wire/listener.py": "each call's task, which outlives its caller (H6)",
    "proxy/wire/upstream.py": "a body sent while its answer may already come",
}
"""Who may start a task, and what for. A task that nobody owns swallows its errors."""

CLOCKS: Final[dict[str, str]] = {
    "proxy/clock.py": "the one clock, behind ports.Clock",
    "proxy/sandbox/server.py": "a platform has a clock of its own",
}

CHANCE: Final[dict[str, str]] = {
    "proxy/generation.py": "the name of a process and its configuration within the fleet",
    "proxy/demo.py": "numbers that a second run on the same ledger has not seen",
    "proxy/stores/memory.py": "the same, for tests",
    "proxy/stores/redis_engine.py": "revisions that no other process makes",
    "proxy/stores/redis_guardian.py": "the marker that a Redis without its data lacks (D6)",
    "proxy/stores/secret.py": "the fingerprints' secret, made once (P1)",
}

THREADS: Final[dict[str, str]] = {
    "proxy/observe/lines.py": "a full pipe must not stop the loop",
    "proxy/stores/batch.py": "guards the queue between the loop and the writer",
    "proxy/stores/sqlite_writer.py": "SQLite's writer",
}

_TASK_CALLS: Final = re.compile(r"(^|\.)(create_task|ensure_future)$")
_CLOCK_CALLS: Final = re.compile(
    r"^(time\.(?!struct_time)\w+|datetime\.(datetime|date)\.(now|utcnow|today))$"
)

_CHANCE_CALLS: Final = re.compile(r"^(random\.\w+|secrets\.(?!compare)\w+|os\.urandom|uuid\.uuid[14])$")
_THREAD_CALLS: Final = re.compile(r"^threading\.(Thread|Timer|Lock|RLock|Event|Condition)$")


def _calls(source: Source, wanted: re.Pattern[str]) -> Iterator[str]:
    names = real_names(source)
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        first, dot, rest = called_name(node).partition(".")
        name = f"{names.get(first, first)}{dot}{rest}"
        if wanted.search(name):
            yield f"{source.name}:{node.lineno} {name}"


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        pytest.param(_TASK_CALLS, TASKS, id="tasks"),
        pytest.param(_CLOCK_CALLS, CLOCKS, id="clocks"),
        pytest.param(_CHANCE_CALLS, CHANCE, id="chance"),
        pytest.param(_THREAD_CALLS, THREADS, id="threads"),
    ],
)
def test_call_is_made_only_where_the_list_names_it(wanted: re.Pattern[str], allowed: dict[str, str]) -> None:
    wrong = [found for source in package() if source.name not in allowed for found in _calls(source, wanted)]

    assert wrong == []


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        pytest.param(_TASK_CALLS, TASKS, id="tasks"),
        pytest.param(_CLOCK_CALLS, CLOCKS, id="clocks"),
        pytest.param(_CHANCE_CALLS, CHANCE, id="chance"),
        pytest.param(_THREAD_CALLS, THREADS, id="threads"),
    ],
)
def test_list_names_only_files_that_make_such_calls(wanted: re.Pattern[str], allowed: dict[str, str]) -> None:
    making = {source.name for source in package() if any(_calls(source, wanted))}

    assert allowed.keys() - making == set(), "take it out: a list that names too much allows too much"


def _prints(source: Source) -> Iterator[str]:
    return _calls(source, re.compile(r"^(print|pprint|breakpoint)$"))


def _blocking(source: Source) -> Iterator[str]:
    return _calls(
        source, re.compile(r"^(time\.sleep|os\.system|input|requests\.\w+|urllib\.request\.urlopen)$")
    )


def _broad_excepts(source: Source) -> Iterator[str]:
    """A bare `except`, or one of everything that does nothing with it."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        names = (
            {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} if node.type else set()
        )
        is_broad = node.type is None or bool(names & {"Exception", "BaseException"})
        if is_broad and all(isinstance(step, ast.Pass | ast.Continue) for step in node.body):
            yield f"{source.name}:{node.lineno} swallows every error"


@pytest.mark.parametrize("ban", [_prints, _blocking, _broad_excepts], ids=lambda ban: ban.__name__)
def test_package_never_does_it(ban: Callable[[Source], Iterator[str]]) -> None:
    wrong = [
        found
        for source in package()
        for found in ban(source)
        if not (ban is _blocking and source.name.startswith("proxy/cli"))
    ]

    assert wrong == []


def test_tests_mock_nothing_of_ours() -> None:
    wrong = [
        f"{source.name}: {name}"
        for source in suite()
        for name in source.imports()
        if name.split(".")[0] in {"mock", "fakeredis", "responses", "respx"} or name == "unittest.mock"
    ]

    assert wrong == []


_IGNORE: Final = re.compile(r"#\s*(noqa|type:\s*ignore|pragma)\b")
_REASONED: Final = re.compile(
    r"#\s*(noqa:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*|type:\s*ignore\[[\w, -]+\]|pragma:\s*no (cover|branch))"
    r"\s*(--|-|#)\s*\S.{3,}"
)


def test_every_ignore_names_its_rule_and_its_reason() -> None:
    wrong = [
        f"{source.name}:{line} {comment}"
        for source in (*package(), *suite())
        for line, comment in source.comments()
        if _IGNORE.search(comment) and not _REASONED.search(comment)
    ]

    assert wrong == []


_LEFT_FOR_LATER: Final = re.compile(r"#\s*(TODO|FIXME|XXX|HACK)\b")
_CODE_IN_COMMENT: Final = re.compile(r"^#\s*(return|raise|import|from \w+ import|await|def|class|if .*:$)\b")


def test_nothing_is_left_for_later() -> None:
    wrong = [
        f"{source.name}:{line} {comment}"
        for source in (*package(), *suite())
        for line, comment in source.comments()
        if _LEFT_FOR_LATER.search(comment) or _CODE_IN_COMMENT.search(comment)
    ]

    assert wrong == []


_PLACES: Final = re.compile(
    r"(?<![\w.])/(?:work|farm|root)/|(?<![\w./])/home/\w+/|/Users/\w+/|[A-Z]:\\\\Users"
)


def test_no_file_names_a_place_of_one_machine() -> None:
    wrong = [
        f"{name}:{number} {line.strip()[:80]}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if _PLACES.search(line) and not name.endswith("tests/tidy/test_bans.py")
    ]

    assert wrong == []


FAILS_BY_RAISING: Final = frozenset(
    {"test_noise_is_refused_or_waited_on_and_never_crashes", "test_ping_answers"}
)
"""Tests whose whole point is that nothing is raised."""


def test_every_test_can_fail() -> None:
    """A test that neither checks nor calls what checks tells nothing."""
    checking = _checking()
    wrong = [
        f"{source.name}:{function.lineno} {function.name}"
        for source in suite()
        for function in source.functions()
        if function.name.startswith("test_") and function.name not in checking | FAILS_BY_RAISING
    ]

    assert wrong == []


def _checking() -> frozenset[str]:
    """Names of the suite's functions that assert, or call one that does."""
    calls: dict[str, set[str]] = {}
    found = {"raises", "fail", "warns", "run_state_machine_as_test", "assert_never"}
    for source in suite():
        for function in source.functions():
            nodes = list(ast.walk(function))
            if any(isinstance(node, ast.Assert | ast.Raise) for node in nodes):
                found.add(function.name)
            names = {called_name(node).rsplit(".", 1)[-1] for node in nodes if isinstance(node, ast.Call)}
            calls.setdefault(function.name, set()).update(names)
    while more := {name for name, called in calls.items() if name not in found and called & found}:
        found |= more
    return frozenset(found)
