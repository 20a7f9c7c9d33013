"""Who may ask: secrets that only the user has, the host, the origin; and headers that forbid a page everything else.

On a login node every user can connect to 127.0.0.1, and any web page can let a browser do so. See docs/explorer.md.
"""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ffkv_explorer.pages import BASE, static

HOST = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?")
A_BASE = re.compile(r"^/~[^/]*")  # how an address begins, perhaps of an explorer that has ended
QUESTIONS = 1000  # that an address may ask
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# Runs on the page for strangers. A page of ours has stored the base in the browser, which keeps ports apart there.
ENTER = static("enter.js")
ENTER_HASH = base64.b64encode(hashlib.sha256(ENTER.encode()).digest()).decode()


@dataclass(frozen=True)
class Guard:
    """The secrets of one explorer."""

    # stands in the address that the user opens first
    token: str = field(default_factory=secrets.token_urlsafe, repr=False)
    pass_word: str = field(default_factory=secrets.token_urlsafe, repr=False)  # what the cookie holds from then on
    # How every address begins from then on. A browser sends a cookie to all ports of a host, and so to servers of other
    # users; but only below its path, and they do not know this one.
    base: str = field(default_factory=lambda: f"/~{secrets.token_urlsafe(16)}", repr=False)
    # the cookie's name, another one for each explorer
    cookie: str = field(default_factory=lambda: f"ffkv-{secrets.token_hex(4)}")


@dataclass(frozen=True)
class Guarded:
    """An application that answers only the user, and what others send only if its own pages ask it to."""

    application: ASGIApp  # what answers the user
    guard: Guard
    error_page: Callable[..., Response]  # makes a page of a status, a heading, a text and perhaps a script

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses a request, or passes it on and adds the headers."""
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        if scope["type"] != "http":
            return await self.application(scope, receive, send)

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if answer := self._refusal(scope) or self._exchange(scope) or self._stranger(scope):
            return await answer(scope, receive, send_safely)
        BASE.set(self.guard.base)
        scope.setdefault("state", {})["known"] = True  # that this is the user
        return await self.application({**scope, "root_path": self.guard.base}, receive, send_safely)

    def _refusal(self, scope: Scope) -> Response | None:
        """Refuses a request that no page of ours and no user makes."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not HOST.fullmatch(host):
            remedy = "Open it at 127.0.0.1 or localhost, with the port that it printed."
            return self.error_page(403, "This is not the explorer's address", remedy)
        if scope["method"] in ("GET", "HEAD") or headers.get("origin") == f"http://{host}":
            return None
        told = "The explorer answers its own pages only."
        return self.error_page(403, "This request comes from another site", told)

    def _exchange(self, scope: Scope) -> Response | None:
        """Answers the first visit: the token becomes a cookie, and leaves the address."""
        try:
            asked = scope["query_string"].decode("latin-1")
            query = parse_qsl(asked, keep_blank_values=True, max_num_fields=QUESTIONS)
        except ValueError:
            return self.error_page(400, "This address asks too much", f"It may ask {QUESTIONS:,} questions.")
        tokens = [value for name, value in query if name == "token"]
        if not tokens:
            return None
        if not _same(tokens[0], self.guard.token):
            remedy = "Open the address that `ffkv explore` printed last."
            return self.error_page(403, "This address is of another explorer", remedy)
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        path = A_BASE.sub("", scope["path"]).lstrip("/\\")
        address = f"{self.guard.base}/{quote(path)}" + (f"?{rest}" if rest else "")
        if Headers(scope=scope).get("sec-fetch-site", "none") in ("none", "same-origin"):
            answer: Response = RedirectResponse(address, 303)
        else:  # a browser sends a strict cookie only to a page that a page of ours leads to
            answer = self.error_page(200, "Opening the explorer", "")
            answer.headers["Refresh"] = f"0; url={address}"
        below = self.guard.base or "/"
        answer.set_cookie(self.guard.cookie, self.guard.pass_word, path=below, httponly=True, samesite="strict")
        return answer

    def _stranger(self, scope: Scope) -> Response | None:
        """Refuses a request without the cookie, or whose address begins in another way."""
        cookies, base = cookie_parser(Headers(scope=scope).get("cookie", "")), self.guard.base
        if _same(cookies.get(self.guard.cookie, ""), self.guard.pass_word) and _same(scope["path"][: len(base)], base):
            return None
        remedy = "Open the address that `ffkv explore` printed: it ends with ?token= and a secret."
        page = self.error_page(403, "The explorer answers only whoever started it", remedy, ENTER)
        page.headers["Content-Security-Policy"] = POLICY.replace("script-src", f"script-src 'sha256-{ENTER_HASH}'")
        return page


def _same(text: str, secret: str) -> bool:
    """Tells whether both texts are equal. The time that it takes does not tell how much of them is equal."""
    return hmac.compare_digest(text.encode(errors="replace"), secret.encode())
