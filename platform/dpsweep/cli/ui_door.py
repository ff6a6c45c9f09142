"""The door before MLflow's UI: whoever has not the token of this launch is sent away.

MLflow itself asks nobody for a password. It reads and writes files for whoever may send it
requests, which on a machine with several users is each of them. ``dpsweep ui`` runs
``mlflow ui --app-name dpsweep``, an entry point of the group ``mlflow.app`` that names ``door``.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

#: Of the environment, which only its owner can read, of the server's processes.
TOKEN_VARIABLE = "DPSWEEP_UI_TOKEN"
#: Name of the entry point.
APP_NAME = "dpsweep"
_CLOSED = b"403: open the address that `dpsweep ui` has printed, with its token\n"
_POLICY_VIOLATION = 1008  # RFC 6455, section 7.4.1

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def door() -> TokenDoor:
    """Return MLflow's application behind the token of the environment.

    Raises:
        RuntimeError: There is no token.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    if not token:
        raise RuntimeError(f"no token in {TOKEN_VARIABLE}: start the UI by `dpsweep ui`")
    from mlflow.server.fastapi_app import app

    return TokenDoor(app, token)


class TokenDoor:
    """An ASGI application that lets those through who have a token, and answers 403 to all others.

    The token is in the address that is opened first (``/?token=...``), then in a cookie that this
    answer sets and no script can read. MLflow sees neither the token of an address nor requests
    that were sent away.

    Args:
        app: What is behind it; checks of ``Host`` and ``Origin`` are MLflow's and stay there.
        token: Of characters that an address may hold as they are, one at least.
    """

    def __init__(self, app: App, token: str) -> None:
        assert token
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, or hand it on."""
        if scope["type"] == "lifespan":  # of the server, from nobody outside
            await self._app(scope, receive, send)
        elif self._took_token(scope):
            await self._app(scope, receive, self._with_cookie(scope, send))
        elif self._has_cookie(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-type", b"text/plain"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": _CLOSED})
        else:
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})

    def _took_token(self, scope: Message) -> bool:
        """Take the token out of an address, in place, so that no log has it; say if it stood there.

        An address without it is left as it is.
        """
        parts = scope["query_string"].split(b"&")
        others = [part for part in parts if not self._is_token(part, b"token")]
        scope["query_string"] = b"&".join(others)
        return len(others) < len(parts)

    def _has_cookie(self, scope: Message) -> bool:
        name = _cookie_name(scope)
        return any(
            self._is_token(part.strip(), name)
            for header, value in scope["headers"]
            if header == b"cookie"
            for part in value.split(b";")
        )

    def _is_token(self, part: bytes, name: bytes) -> bool:
        key, _, value = part.partition(b"=")
        return key == name and hmac.compare_digest(value, self._token)

    def _with_cookie(self, scope: Message, send: Send) -> Send:
        flags = b"; HttpOnly; Path=/; SameSite=Strict"
        cookie = (b"set-cookie", _cookie_name(scope) + b"=" + self._token + flags)

        async def send_too(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), cookie]}
            await send(message)

        return send_too


def _cookie_name(scope: Message) -> bytes:
    """Return a name for each port: a browser has one jar for all ports of a host."""
    return b"dpsweep-ui-%d" % ((scope.get("server") or ("", 0))[1] or 0)
