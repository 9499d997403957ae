"""Which route a call belongs to: the normalised path, matched against templates (H9).

Normalised is for matching and for the operation's identity only; the raw target is what is forwarded (H1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias
from urllib.parse import unquote, unquote_to_bytes

from msgspec import Struct

from proxy.core.rules import Route

Params: TypeAlias = Mapping[str, str]
"""A path's parameters, percent-encoded as in the normalised path; `decoded` compares with anything else."""

UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")  # RFC 3986 2.3

_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})|[^!-~]")
_PARAM = re.compile(r"\{([a-z][a-z0-9_]*)\}")


class Match(Struct, frozen=True):
    """A route that a call belongs to, with the parameters that its path holds."""

    route: Route
    params: Params


class RouteTable:
    """A platform's guarded routes, compiled: one dict lookup, then a comparison of segments.

    Where two templates fit, the one with a literal where the other has a parameter wins, from the left.

    Raises: ValueError, with what is wrong, for templates that can't be told apart or that no path fits.
    """

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self._by_shape: dict[tuple[str, int], list[_Compiled]] = {}
        names: dict[tuple[str, tuple[str | None, ...]], str] = {}
        for route in routes:
            compiled = _compile(route)
            calls = (route.method, compiled.shape)
            if calls in names:
                raise ValueError(
                    f"routes {names[calls]} and {route.name} fit the same calls: {route.template}"
                )
            names[calls] = route.name
            self._by_shape.setdefault((route.method, len(compiled.shape)), []).append(compiled)
        for group in self._by_shape.values():
            group.sort(key=lambda compiled: [segment is None for segment in compiled.shape])

    def match(self, method: str, path: str) -> Match | None:
        """The route of a call, by its method and normalised path; None for a call that is not guarded.

        A parameter is one whole segment that is not empty.
        """
        segments = path.split("/")
        for compiled in self._by_shape.get((method, len(segments)), ()):
            for index, literal in compiled.literals:
                if segments[index] != literal:
                    break
            else:
                params = {name: segments[index] for index, name in compiled.params}
                if all(params.values()):
                    return Match(compiled.route, params)
        return None


def normalise(target: bytes) -> tuple[str, bytes]:
    """Path and query of a raw request-target, the path normalised by RFC 3986 section 6.2.2.

    Percent-encoded unreserved characters are decoded, hexadecimal digits upper-cased. Bytes that no target
    may hold are percent-encoded, so that the path is visible ASCII whatever came; a stray `%` stays. Dot
    segments are not removed: targets that hold them are refused before (H9).
    """
    path, _, query = target.partition(b"?")
    if not _PLAIN.fullmatch(path):
        path = _ESCAPE.sub(_normal_escape, path)
    return path.decode("ascii"), query


def decoded(param: str) -> str:
    """A parameter as a value: percent-decoded; bytes that are not UTF-8 become lone surrogates."""
    return unquote_to_bytes(param).decode("utf-8", "surrogateescape") if "%" in param else param


_PLAIN = re.compile(rb"[!-$&-~]*")  # visible ASCII without "%": already normal


def _normal_escape(match: re.Match[bytes]) -> bytes:
    byte = int(match[1], 16) if match[1] else match[0][0]
    return bytes((byte,)) if byte in UNRESERVED else b"%%%02X" % byte


class _Compiled(Struct, frozen=True):
    """A template by its segments: None where a parameter stands."""

    route: Route
    shape: tuple[str | None, ...]
    literals: tuple[tuple[int, str], ...]
    params: tuple[tuple[int, str], ...]


def _compile(route: Route) -> _Compiled:
    shape: list[str | None] = []
    params: list[tuple[int, str]] = []
    for index, segment in enumerate(route.template.split("/")):
        match = _PARAM.fullmatch(segment)
        if match is not None:
            params.append((index, match[1]))
        elif "{" in segment or "}" in segment or not _PLAIN.fullmatch(segment.encode()):
            raise ValueError(
                f"route {route.name}: {route.template}: {segment} is neither plain nor a {{name}}"
            )
        shape.append(segment if match is None else None)
    if not route.template.startswith("/") or len({name for _, name in params}) != len(params):
        raise ValueError(f"route {route.name}: {route.template} has to start with / and name nothing twice")
    literals = tuple((index, segment) for index, segment in enumerate(shape) if segment is not None)
    return _Compiled(route, tuple(shape), literals, tuple(params))


def near_miss(table: RouteTable, method: bytes, path: str) -> bool:
    """Whether a path that is on no route may still reach a guarded endpoint at the platform.

    Servers differ in whether they merge slashes, drop a last one, decode `%2F` or decode twice, end a path at
    an encoded NUL, `?` or `#`, ignore case, blanks and dots at its end, or a suffix that names a format, and
    strip `;params`. A call that some of them would take for a guarded one must not pass unguarded.
    """
    if _UNUSUAL.search(path) is None:
        return False  # every reading of it is itself
    plain = path
    for _ in range(_DECODED_TIMES):
        plain = unquote(plain, "latin-1")
    plain = _PATH_PARAMS.sub("", _PATH_END.split(plain, maxsplit=1)[0].replace("\\", "/"))
    segments: list[str] = []
    for segment in (part.strip() for part in plain.split("/")):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    plain = "/" + "/".join(segments).rstrip(".")
    variants = {plain, plain.lower(), _SUFFIX.sub("", plain.lower())}
    name = method.decode("latin-1")
    return any(table.match(name, variant) is not None for variant in variants)


_DECODED_TIMES = 2
_PATH_END = re.compile("[\\x00?#]")
_PATH_PARAMS = re.compile(r";[^/]*")
_SUFFIX = re.compile(r"\.[a-z]{1,5}\Z")
_UNUSUAL = re.compile(r"[A-Z;%]|//|/\Z|\.[a-z]{0,5}\Z")
