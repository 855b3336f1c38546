"""Credentials for a Prometheus server; no message that may reach a log or a condition holds a secret."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

_LINE_ENDS = "\r\n"  # of a Secret made from a file


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A token, as it stands in a Secret."""

    token: str = field(repr=False)

    def header(self) -> str:
        """The value of the Authorization header. Raises ValueError, without the token, if no header can hold it."""
        token = self.token.strip(_LINE_ENDS)
        if not (token and token.isascii() and token.isprintable()) or " " in token:
            raise ValueError("the bearer token is empty or holds characters that no header may hold")
        return f"Bearer {token}"


@dataclass(frozen=True, slots=True)
class BasicAuth:
    """A user and a password, as they stand in a Secret of type kubernetes.io/basic-auth."""

    username: str
    password: str = field(repr=False)

    def header(self) -> str:
        """The value of the Authorization header. Raises ValueError, without the password, if no header can hold them.

        Source: RFC 7617, section 2.
        """
        username, password = self.username.strip(_LINE_ENDS), self.password.strip(_LINE_ENDS)
        if ":" in username:
            raise ValueError("the user name of basic authentication holds a colon")
        return f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"


Credentials = BearerToken | BasicAuth
