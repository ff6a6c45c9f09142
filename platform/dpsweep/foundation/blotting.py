"""Blotting: secrets of the environment taken out of what libraries say, before anybody sees it."""

from __future__ import annotations

import os
import re

#: Variables whose values are secrets that libraries send, and may quote where that fails.
SECRETS = (
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_UC_OSS_TOKEN",
    "DATABRICKS_TOKEN",
    "RAY_AUTH_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "PGPASSWORD",
)
# A shorter value is in many a word that says something.
_SHORTEST = 4
# Behind the other forms a word of prose may stand: it has neither capitals nor digits.
_HEADER = re.compile(
    r"\b(Bearer|(?i:bearer|basic)(?=\s+[^\s'\"\\]*[A-Z0-9]))\s+[^\s'\"\\]+(?:\\[^\s'\"]*)?"
)


def blotted(text: str) -> str:
    r"""Return what a library says without the secrets of the environment and of headers.

    Blot out first and cut afterwards: half a secret is not found any more. Addresses are for
    ``spec.tracking.masked``.

    >>> blotted(r"Invalid return character(s) in header value: 'Bearer dapi0123\n'")
    "Invalid return character(s) in header value: 'Bearer ***'"
    >>> blotted("Basic authentication failed: basic dXNlcjpwYXNz")
    'Basic authentication failed: basic ***'
    """
    values = [os.environ.get(name, "") for name in SECRETS]
    # As it is, as Python quotes it, and each line without its ends.
    forms = {*values, *(repr(v)[1:-1] for v in values)}
    forms |= {line.strip() for value in values for line in value.splitlines()}
    # One secret may begin another one: the longest first.
    for form in sorted(forms, key=len, reverse=True):
        if len(form.strip()) >= _SHORTEST:
            text = text.replace(form, "***")
    return _HEADER.sub(r"\1 ***", text)
