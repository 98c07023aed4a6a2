"""``octavo`` whose connections buffer next to nothing, so that a reader's slowness is felt. No part of the product."""

from __future__ import annotations

import socket

from octavo.cli.main import main
from octavo.server import listening

bind = listening.bind


def narrow_bind(host: str, port: int) -> socket.socket:
    listener = bind(host, port)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # accepted connections inherit it
    return listener


listening.bind = narrow_bind
main()
