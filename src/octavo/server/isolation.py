"""``Isolation``: whose cached blocks a request may find.

With ``api-key`` the salt of every request is derived from its key: whoever has another key finds other blocks, so that
neither ``cached_tokens`` nor the time of an answer tells what others have asked. The derivation is keyed with a secret
that this process draws at its start and never tells, so that a recording, which holds salts, holds no key.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict

from starlette.requests import Request

from octavo.server.middleware import bearer
from octavo.server.settings import CacheIsolation

OWNED_MAX = 8192
"""Requests whose owner is remembered: the latest ones."""


class Isolation:
    def __init__(self, kind: CacheIsolation) -> None:
        self.kind = kind
        self._secret = secrets.token_bytes(32)
        self._owners: OrderedDict[str, bytes] = OrderedDict()

    def salt(self, http: Request, cache_salt: str | None) -> str | None:
        """The salt under which this request is cached: its own, or one of its key and its own."""
        # An empty salt is a mistake, of which the client is told further down.
        if self.kind == "none" or cache_salt == "":
            return cache_salt
        tenant = self._tenant(http)
        # The tenant's digest has a fixed length, so no two pairs of key and salt read alike.
        salt = tenant if cache_salt is None else self._digest(tenant + cache_salt.encode())
        return salt.hex()

    def own(self, http: Request, job_id: str) -> None:
        """Remember whose this is."""
        if self.kind == "none":
            return
        self._owners[job_id] = self._tenant(http)
        if len(self._owners) > OWNED_MAX:
            self._owners.popitem(last=False)

    def may_see(self, http: Request, request_id: str) -> bool:
        """Whether the sender may be told about a job, or about one of its prompts."""
        if self.kind == "none":
            return True
        parts = request_id.split("-")
        names = ["-".join(parts[:count]) for count in range(len(parts), 0, -1)]
        owner = next((self._owners[name] for name in names if name in self._owners), None)
        return owner is not None and hmac.compare_digest(owner, self._tenant(http))

    def _tenant(self, http: Request) -> bytes:
        return self._digest(bearer(http.scope))

    def _digest(self, message: bytes) -> bytes:
        return hmac.digest(self._secret, message, "sha256")
