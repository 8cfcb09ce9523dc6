"""Unit tests can neither build nor reach a network: whatever tries to gets an exception."""

import socket
import subprocess
from typing import Never

import pytest


@pytest.fixture(autouse=True)
def cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make programs and network connections impossible (Unix sockets stay: the governor's tests use them)."""

    def refuse_program(*args: object, **kwargs: object) -> Never:
        raise AssertionError(f"a unit test tried to run a program: {args}")

    connect = socket.socket.connect

    def refuse_network(self: socket.socket, address: object) -> None:
        if self.family != socket.AF_UNIX:
            raise AssertionError(f"a unit test tried to connect to {address!r}")
        connect(self, address)

    monkeypatch.setattr(subprocess, "Popen", refuse_program)
    monkeypatch.setattr(socket.socket, "connect", refuse_network)
