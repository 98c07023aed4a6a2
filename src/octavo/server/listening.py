"""``bind``: the port, taken before anything slow happens."""

from __future__ import annotations

import errno
import socket

from octavo.core.errors import ConfigError


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, so that a port in use is found before the model is loaded. Raises ConfigError."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(f"cannot listen on host {host!r}: {error.strerror}", param="--host") from error
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is in use; choose another --port", param="--port"
            ) from error
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}", param="--port") from error
    return listener
