"""The console (A3): one page with no outside assets, allowed to run nothing but its own script."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from aiohttp import web

_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


@cache
def page() -> tuple[bytes, str]:
    """The page and the policy that a browser holds it to.

    Raises: ValueError if the page is not made of one style and one script.
    """
    text = files("proxy.admin").joinpath("console.html").read_text(encoding="utf-8")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_digest(_STYLE, text)}'",
            f"script-src '{_digest(_SCRIPT, text)}'",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        )
    )
    return text.encode("utf-8"), policy


def _digest(part: re.Pattern[str], text: str) -> str:
    found = part.findall(text)
    if len(found) != 1:
        raise ValueError(f"console.html: expected one {part.pattern}, found {len(found)}")
    return "sha256-" + base64.b64encode(hashlib.sha256(found[0].encode("utf-8")).digest()).decode("ascii")


async def console(_: web.Request) -> web.Response:
    body, policy = page()
    headers = {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": policy}
    return web.Response(body=body, headers=headers)
