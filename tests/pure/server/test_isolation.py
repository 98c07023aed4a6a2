from __future__ import annotations

import pytest
from starlette.requests import Request

from octavo.core.errors import ConfigError
from octavo.server.isolation import OWNED_MAX, Isolation
from octavo.server.settings import ServerOptions


def sent(key: str | None) -> Request:
    headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
    return Request({"type": "http", "headers": headers})


def test_salts_are_apart_by_key_and_by_salt() -> None:
    isolation = Isolation("api-key")
    pairs = [("a", None), ("b", None), ("a", "x"), ("b", "x"), ("a", "xx"), ("ax", "x")]
    salts = [isolation.salt(sent(key), salt) for key, salt in pairs]
    assert len(set(salts)) == len(pairs)
    assert salts == [isolation.salt(sent(key), salt) for key, salt in pairs]


def test_the_salt_of_the_same_key_is_another_in_another_process() -> None:
    one, other = Isolation("api-key"), Isolation("api-key")
    assert one.salt(sent("a"), None) != other.salt(sent("a"), None)
    assert "secret-key" not in str(one.salt(sent("secret-key"), None))


def test_without_isolation_a_salt_is_the_clients_own() -> None:
    isolation = Isolation("none")
    assert isolation.salt(sent("a"), None) is None and isolation.salt(sent("a"), "x") == "x"
    assert isolation.may_see(sent("b"), "anything")


def test_an_empty_salt_stays_one_to_be_refused() -> None:
    assert Isolation("api-key").salt(sent("a"), "") == ""


def test_owners_are_remembered_up_to_a_limit() -> None:
    isolation = Isolation("api-key")
    for number in range(OWNED_MAX + 1):
        isolation.own(sent("a"), f"cmpl-{number}")
    assert isolation.may_see(sent("a"), "cmpl-1") and isolation.may_see(sent("a"), "cmpl-1-0-2")
    assert not isolation.may_see(sent("b"), "cmpl-1") and not isolation.may_see(sent("a"), "cmpl-0")


def test_isolation_by_key_needs_keys() -> None:
    with pytest.raises(ConfigError, match="--api-key") as caught:
        ServerOptions(cache_isolation="api-key")
    assert caught.value.param == "--cache-isolation"
