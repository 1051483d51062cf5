"""A server on this machine alone for the page of `treadle explore`: documents, and edits.

Other pages that the browser shows may send requests here, too. So whoever asks for anything but the empty page has to
name the token of the page's address, and this server as its host: a name that somebody else's DNS leads here is another
one. What is sent from a page has to be sent from this one.
"""

from __future__ import annotations

import errno
import hmac
import json
import secrets
import sys
import traceback
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any, cast
from urllib.parse import urlsplit

from treadle.errors import TreadleError, printable
from treadle.tools.explore_page import DATA, SCRIPTS, document, page
from treadle.tools.explore_record import json_of
from treadle.tools.explore_session import Session

ADDRESS = "127.0.0.1"
TOKEN = "X-Treadle-Token"
_MOST_BYTES = 1 << 16
"""Of a request: a schedule is a few hundred."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Server(ThreadingHTTPServer):
    """Serves a session until `shutdown`; requests that compute take turns."""

    daemon_threads = True

    def __init__(self, session: Session, port: int = 0):
        """port: 0 for one that is free. TreadleError for one that is in use, or that there is not."""
        self.session, self.token, self.work, self.step = session, secrets.token_urlsafe(24), Lock(), ""
        session.progress = self._note
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OverflowError, OSError) as error:
            in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            why = "is in use" if in_use else f"cannot be used: {error}"
            raise TreadleError(f"port {port} {why}", "--port", "another one, or 0 for one that is free") from error

    @property
    def address(self) -> str:
        """What a browser is given."""
        return f"http://{self.host}/?token={self.token}"

    @property
    def host(self) -> str:
        """The server's name and port."""
        return f"{ADDRESS}:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no error; what else went wrong is told where the server was started."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def _note(self, step: str, fraction: float) -> None:
        self.step = step


class _RefusedError(Exception):
    def __init__(self, status: HTTPStatus, message: str):
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "treadle"
    sys_version = ""

    @property
    def _here(self) -> Server:
        return cast(Server, self.server)

    def do_GET(self) -> None:
        """The page, its script, and documents."""
        self._answered(self._get)

    def do_POST(self) -> None:
        """Edits."""
        self._answered(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the page shows what happens."""

    def _answered(self, answer: Any) -> None:
        """Sends what `answer` gives, or why there is nothing."""
        try:
            self._check_host()
            self._send(HTTPStatus.OK, *answer())
        except _RefusedError as error:
            self._fail(error.status, str(error))
        except TreadleError as error:
            self._fail(HTTPStatus.BAD_REQUEST, str(error))
        except ConnectionError:
            raise
        except Exception as error:
            traceback.print_exc()
            self._fail(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")

    def _check_host(self) -> None:
        port = self._here.server_port
        if self.headers.get("Host") not in (self._here.host, f"localhost:{port}"):
            raise _RefusedError(HTTPStatus.FORBIDDEN, "another host is meant")

    def _check_token(self) -> None:
        given = self.headers.get(TOKEN, "")
        if not hmac.compare_digest(given.encode(), self._here.token.encode()):
            raise _RefusedError(HTTPStatus.FORBIDDEN, "the token of the page's address is missing")

    def _get(self) -> tuple[str, str]:
        path = urlsplit(self.path).path
        session = self._here.session
        if path == "/":
            return "text/html; charset=utf-8", page(session.path.name, live=True)
        for script in SCRIPTS:
            if path == f"/{script.name}":
                return "text/javascript; charset=utf-8", script.read_text()
        self._check_token()
        if path == "/progress":
            return _json({"step": self._here.step})
        if path == "/module":
            with self._here.work:
                return "text/plain; charset=utf-8", session.text()
        folder, _, name = path.removeprefix("/").partition("/")
        if folder != DATA:
            raise _RefusedError(HTTPStatus.NOT_FOUND, f"there is nothing at {printable(path)}")
        return "application/json", self._document(name)

    def _document(self, name: str) -> str:
        session = self._here.session
        kept = session.documents.content.get(name)
        if kept is not None:
            return json_of(kept)
        with self._here.work:
            try:
                return json_of(document(session, name))
            except KeyError:
                raise _RefusedError(HTTPStatus.NOT_FOUND, f"there is no document '{printable(name)}'") from None

    def _post(self) -> tuple[str, str]:
        self._check_token()
        if self.headers.get("Origin", f"http://{self.headers.get('Host')}") != f"http://{self.headers.get('Host')}":
            raise _RefusedError(HTTPStatus.FORBIDDEN, "it was sent from another page")
        given = self._body()
        session = self._here.session
        if not self._here.work.acquire(blocking=False):
            raise _RefusedError(HTTPStatus.CONFLICT, "something is computed already: wait for its end")
        try:
            match self.path:
                case "/edit":
                    session.edit(*_edit_of(given), equal=bool(given.get("equal")))
                case "/undo":
                    session.undo()
                case "/measure":
                    session.measure()
                case _:
                    raise _RefusedError(HTTPStatus.NOT_FOUND, f"there is nothing to do at {printable(self.path)}")
            return "application/json", json_of(document(session, "state"))
        finally:
            self._here.step = ""
            self._here.work.release()

    def _body(self) -> dict[str, Any]:
        """The request's object; what is too long, or none, is refused."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MOST_BYTES:
            self.close_connection = True
            raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"up to {_MOST_BYTES} bytes are taken")
        try:
            given: object = json.loads(self.rfile.read(int(length)) or b"{}")
        except ValueError as error:
            raise TreadleError(f"no JSON: {error}", "the request", "an object") from error
        if not isinstance(given, dict):
            raise TreadleError("no object", "the request", "an object")
        return cast("dict[str, Any]", given)

    def _fail(self, status: HTTPStatus, message: str) -> None:
        self._send(status, *_json({"error": printable(message)}))

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def _json(value: Any) -> tuple[str, str]:
    return "application/json", json.dumps(value)


def _edit_of(given: dict[str, Any]) -> tuple[int, str]:
    group, schedule = given.get("group"), given.get("schedule")
    if not isinstance(group, int) or isinstance(group, bool) or not isinstance(schedule, str):
        raise TreadleError("no edit", "the request", '{"group": 0, "schedule": "#schedule.use<...>"}')
    return group, schedule


__all__ = ["ADDRESS", "TOKEN", "Server"]
