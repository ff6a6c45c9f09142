"""Stands by for an agent of Ray's, until somebody calls it; a program, started by its path.

``python -I -S standby.py`` waits for the end of its input, which is that of the raylet.
``python -I -S standby.py PORT_FILE ADDRESS COMMAND...`` listens meanwhile. When somebody connects,
it becomes the agent, which must be the raylet's child, and a child of its own hands on what comes:
the port is never free, so that nobody else on this machine can take it.

An agent takes half a second to start, and Ray waits for each of them; a sweep on one machine calls
none. This imports nothing that is not part of a bare interpreter.
"""

import contextlib
import os
import select
import socket
import sys
import threading
import time

_PATIENCE_S = 60.0


def stand_by(port_file: str, address: str, *command: str) -> None:
    """Listen at a free port, write it to a file, and become the agent when it is called.

    Args:
        port_file: Where the raylet looks for the port; the agent writes its own there.
        address: To listen at.
        command: Of the agent, which is to choose its port.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        port = str(server.getsockname()[1])
        unfinished = f"{port_file}.standby"
        with open(unfinished, "w") as file:
            file.write(port)
        os.replace(unfinished, port_file)
        if _has_ended(server):
            return
        if os.fork():
            os.execv(command[0], command)
        # A pipe by which the raylet learns of the agent's end is the agent's alone.
        os.closerange(3, server.fileno())
        os.closerange(server.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        _hand_on(server, address, _port_of_agent(port_file, port))


def _has_ended(server: socket.socket) -> bool:
    """Wait for a caller, or for the end of the raylet; say whether it is that."""
    return sys.stdin in select.select([server, sys.stdin], [], [])[0]


def _port_of_agent(port_file: str, before: str) -> int:
    """Wait until an agent has written its port in the place of ours; end with the raylet."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and not select.select([sys.stdin], [], [], 0.02)[0]:
        # Ray removes the file before it writes another one.
        with contextlib.suppress(FileNotFoundError), open(port_file) as file:
            port = file.read()
            if port not in ("", before):
                return int(port)
    sys.exit("the agent has not started, or is not wanted any more")


def _hand_on(server: socket.socket, address: str, port: int) -> None:
    """Hand every connection on to the agent, until the raylet has ended.

    What a connection fails of ends that one alone: without this process its port would be free.
    """
    while not _has_ended(server):
        try:
            with contextlib.ExitStack() as stack:
                caller = stack.enter_context(server.accept()[0])
                agent = stack.enter_context(_called(address, port))
                for pair in ((caller, agent), (agent, caller)):
                    threading.Thread(target=_copy, args=pair, daemon=True).start()
                stack.pop_all()
        except (OSError, RuntimeError):
            time.sleep(0.05)


def _called(address: str, port: int) -> socket.socket:
    """Return a connection to an agent, which says its port a moment before it listens there."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return socket.create_connection((address, port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline or select.select([sys.stdin], [], [], 0.05)[0]:
                raise


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # one of the two has gone: so does the other, in whatever wait
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        stand_by(*sys.argv[1:])
    else:
        sys.stdin.read()
