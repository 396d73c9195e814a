"""Which requests are let in. The guard wraps every route, so that its rules hold wherever the routes are mounted.

It checks, in this order:
- The address and the headers are not larger than those of any browser (414, 431).
- The Host header names this server (421): a page whose own name was made to resolve to this machine reads nothing.
- There is a token (401), in a link to `/`, in a header, or as the cookie that the link leaves. After ten wrong tokens
  from one address within a minute, no token from there is checked for the rest of the minute (429); the cookie still
  works. A link that another page loads is refused, and is no try. In place of the token a link may carry a code. It
  works once and for a few minutes: read later, in a list of processes or a log, it is worthless.
- A request other than GET or HEAD changes something: it has to be JSON, and come from this very page or with a header
  that no other page can send (403).
The headers of every answer tell the browser: load nothing from elsewhere, run nothing inline, allow no frame, keep no
copy.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from secrets import compare_digest, token_urlsafe
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runcue import ConfigError
from runcue.web.loglimit import LogLimit
from runcue.web.rows import encoded
from runcue.web.shapes import Error

SHORTEST_TOKEN = 16
TRIES = 10
PER_SECONDS = 60.0
MOST_CODES = 10
CODE_LASTS = 600.0
"""Seconds for which a code can be used."""
MOST_PEERS = 1000
"""Addresses whose wrong tokens are remembered."""
LONGEST_ADDRESS = 8 * 1024
MOST_HEADERS = 200
LARGEST_HEAD = 64 * 1024
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
PASSES = 3
"""Passes of the loop within which a closed connection ends."""
SAFE_METHODS = ("GET", "HEAD")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
NO_ENTRY = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>runcue</title></head><body><h1>401: a token is needed</h1>
<p>Open the link that was printed when the dashboard was started: it ends with <code>?token=…</code>.
It leaves a cookie that lasts until this browser is closed.</p></body></html>
"""


class Refused(Exception):
    """A request that is answered with an error: its status and its reason."""

    def __init__(self, status: int, reason: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers


def refusal(status: int, reason: str, headers: dict[str, str] | None = None) -> Response:
    """The response that refuses a request."""
    body = encoded(Error(error=reason))
    return Response(body, status, headers=headers, media_type="application/json")


class Access:
    """Checks requests against the hosts and the token of one dashboard."""

    def __init__(
        self, token: str, hosts: Iterable[str], log_limit: LogLimit, *, protect: bool, read_only: bool
    ) -> None:
        if protect and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
            raise ConfigError(
                f"The token has to be at least {SHORTEST_TOKEN} printable ASCII characters. "
                "Leave it out to have one made."
            )
        self._protect = protect
        self._read_only = read_only
        self.log_limit = log_limit
        self._token = token.encode()
        self._hosts = {host.lower() for host in (*LOOPBACK, *hosts)}
        digest = hashlib.sha256(self._token).hexdigest()
        self.cookie = f"runcue_{digest[:8]}"
        """Differs between two dashboards on one host: browsers do not tell cookies apart by port."""
        self._pass = hmac.new(self._token, b"runcue cookie", hashlib.sha256).hexdigest()
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()
        self._codes: dict[str, float] = {}
        """Unused codes, and when each expires."""

    # the host ---------------------------------------------------------------------------------------------

    def check_host(self, scope: Scope) -> None:
        """Refuse a request whose Host header names another server, or that has none."""
        named = [value for name, value in scope["headers"] if name == b"host"]
        target = scope.get("raw_path") or b"/"
        if len(named) != 1 or not target.startswith(b"/") or not self._is_ours(named[0].decode("latin-1")):
            raise Refused(421, "This server does not answer for that host. Use its own address.")

    def _is_ours(self, host: str) -> bool:
        name, has_port, port = host.lower().rpartition(":")
        if not has_port or port.endswith("]"):  # the colon is one of an IPv6 address
            name, port = host.lower(), ""
        if port and not (port.isascii() and port.isdigit()):
            return False
        return name in self._hosts or ("*" in self._hosts and _is_address(name))

    @staticmethod
    def check_size(scope: Scope) -> None:
        """Refuse an address or headers larger than those of any browser."""
        headers = scope["headers"]
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > LONGEST_ADDRESS:
            raise Refused(414, f"The address is longer than {LONGEST_ADDRESS:,} bytes.")
        if len(headers) > MOST_HEADERS or sum(len(one) + len(two) for one, two in headers) > LARGEST_HEAD:
            raise Refused(431, f"More than {MOST_HEADERS} headers, or {LARGEST_HEAD:,} bytes of them.")

    # the token --------------------------------------------------------------------------------------------

    def check_token(self, headers: Headers, peer: str) -> bool:
        """Refuse a request without the token. True when a header has it: another page cannot have sent that."""
        given = headers.get("authorization")
        if not self._protect:
            return given is not None
        if given is not None:
            scheme, _, token = given.partition(" ")
            if scheme.lower() == "bearer" and self._try(token.strip(), peer):
                return True
            raise self._no_entry("That token is wrong.")
        if not self.has_cookie(headers):
            raise self._no_entry("A token is needed: Authorization: Bearer, or the link of the dashboard.")
        return False

    def make_code(self) -> str:
        """Make a code for a link, which works once and for a few minutes; of too many codes the oldest is dropped."""
        code = token_urlsafe(32)
        self._codes[code] = time.monotonic() + CODE_LASTS
        while len(self._codes) > MOST_CODES:
            del self._codes[next(iter(self._codes))]
        return code

    def check_link(self, headers: Headers, name: str, given: str, peer: str) -> None:
        """Refuse a wrong token or code in a link, and a link that another page loads: no person has opened it."""
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            how = headers.get("sec-fetch-dest"), headers.get("sec-fetch-mode"), headers.get("sec-purpose")
            if how != ("document", "navigate", None):
                raise Refused(403, "This request comes from another page.")
        if not self._protect:
            return
        if not self._try(given, peer, is_code=name == "code"):
            raise self._no_entry(
                "That code is wrong, or was used before, or is too old."
                if name == "code"
                else "That token is wrong."
            )

    def _use_code(self, code: str) -> bool:
        return self._codes.pop(code, 0.0) > time.monotonic()

    def has_cookie(self, headers: Headers) -> bool:
        """True when the request carries the cookie that a link leaves."""
        for line in headers.getlist("cookie"):
            found = cookie_parser(line).get(self.cookie, "")
            if compare_digest(found.encode("utf-8", "surrogateescape"), self._pass.encode()):
                return True
        return False

    def give_cookie(self, scope: Scope, response: Response) -> None:
        """Set the cookie in a browser that opened the link."""
        response.set_cookie(
            self.cookie,
            self._pass,
            path=f"{scope.get('root_path', '')}/",
            secure=scope["scheme"] == "https",
            httponly=True,
            samesite="strict",
        )

    def _try(self, token: str, peer: str, *, is_code: bool = False) -> bool:
        now = time.monotonic()
        tries = self._wrong.get(peer, deque())
        while tries and tries[0] < now - PER_SECONDS:
            tries.popleft()
        if len(tries) >= TRIES:
            wait = int(tries[0] + PER_SECONDS - now) + 1
            raise Refused(429, f"Too many wrong tokens. Try again in {wait} s.", {"Retry-After": str(wait)})
        is_right = compare_digest(token.encode("utf-8", "surrogateescape"), self._token)
        if self._use_code(token) if is_code else is_right:
            return True
        tries.append(now)
        self._wrong[peer] = tries
        self._wrong.move_to_end(peer)
        while len(self._wrong) > MOST_PEERS:
            self._wrong.popitem(last=False)
        self.log_limit.warning(
            "dashboard: a wrong code from %s" if is_code else "dashboard: a wrong token from %s", peer
        )
        return False

    @staticmethod
    def _no_entry(reason: str) -> Refused:
        return Refused(401, reason, {"WWW-Authenticate": "Bearer"})

    # changes ----------------------------------------------------------------------------------------------

    def check_change(self, headers: Headers, by_header: bool) -> None:
        """Refuse a change that another page may have sent, and every change where the dashboard is read-only."""
        self.check_origin(headers, by_header)
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(403, "Changes are asked for in JSON: Content-Type: application/json.")
        if self._read_only:
            raise Refused(403, "This dashboard is for looking only.")

    def check_origin(self, headers: Headers, by_header: bool) -> None:
        """Refuse a request from another page; browsers tell by Origin or Sec-Fetch-Site."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None:
            own = headers.get("host", "").lower()
            is_own = origin.lower() in (f"http://{own}", f"https://{own}")
        else:
            is_own = by_header or site in ("same-origin", "none")
        if not is_own or site in ("cross-site", "same-site"):
            raise Refused(403, "This request comes from another page.")


def _is_address(name: str) -> bool:
    """Whether this is an IP address: unlike a name, it cannot be made to resolve to another machine."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class Guard:
    """An ASGI application behind the checks. With `is_page` it takes the token or the code of a link."""

    def __init__(
        self, app: ASGIApp, access: Access, *, is_page: bool = False, may_keep: bool = False
    ) -> None:
        self.app = app
        self._access = access
        self._is_page = is_page
        self._headers = {**HEADERS, "Cache-Control": "no-cache" if may_keep else "no-store"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers[name] = value
            await send(message)

        try:
            entered = self._enter(scope)
        except Refused as error:
            entered = _refused(scope, error)
        if entered is None:
            await self.app(scope, receive, send_guarded)
        else:
            await answer(entered, scope, receive, send_guarded)

    def _enter(self, scope: Scope) -> Response | None:
        """The response in place of the application's; None when the request is let in."""
        access, headers = self._access, Headers(scope=scope)
        access.check_size(scope)
        access.check_host(scope)
        peer = (scope.get("client") or ("unknown",))[0]
        if self._is_page and (link := _link(scope)) is not None:
            access.check_link(headers, *link, peer)
            response = RedirectResponse("./", 303)
            access.give_cookie(scope, response)
            return response
        by_header = access.check_token(headers, peer)
        if scope["type"] == "websocket":
            access.check_origin(headers, by_header)
        elif scope["method"] not in SAFE_METHODS:
            access.check_change(headers, by_header)
        return None


async def answer(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send a response, also to a client that asked for a WebSocket."""
    if scope["type"] == "http":
        await response(scope, receive, send)
    elif "websocket.http.response" in scope.get("extensions", {}):
        await response(scope, receive, send)
        # uvicorn logs an error when this returns before the connection has ended
        for _ in range(PASSES):
            await asyncio.sleep(0)
    else:
        await send({"type": "websocket.close", "code": 1008})


def _link(scope: Scope) -> tuple[str, str] | None:
    """The name and value of the token or code in a link. A HEAD request does not use up a code."""
    if scope["type"] != "http" or scope["method"] not in SAFE_METHODS:
        return None
    query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
    names = ("token", "code") if scope["method"] == "GET" else ("token",)
    return next(((name, query[name]) for name in names if name in query), None)


def _refused(scope: Scope, error: Refused) -> Response:
    accept = Headers(scope=scope).get("accept", "")
    if error.status == 401 and "text/html" in accept:
        return HTMLResponse(NO_ENTRY, 401, headers=error.headers)
    return refusal(error.status, error.reason, error.headers)
