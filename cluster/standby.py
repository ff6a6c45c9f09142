"""Stands by for an agent of Ray's, until somebody calls it; a program, started by its path.

``python -I -S standby.py`` waits for the end of its input, which is that of the raylet.
``python -I -S standby.py PORT_FILE ADDRESS COMMAND...`` listens meanwhile, and whoever connects is
met by the agent itself at the next try, as Ray tries for half a minute.

An agent takes half a second to start, and Ray waits for each of them; a sweep on one machine calls
none. This imports nothing that is not part of a bare interpreter.
"""

import os
import select
import socket
import sys

_PORT = "--runtime-env-agent-port="


def stand_by(port_file: str, address: str, *command: str) -> None:
    """Listen at a free port, write it to a file, and become the agent when it is called."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        unfinished = f"{port_file}.standby"
        with open(unfinished, "w") as file:
            file.write(str(port))
        os.replace(unfinished, port_file)
        ready, _, _ = select.select([server, sys.stdin], [], [])
        if sys.stdin in ready:
            return
    words = [f"{_PORT}{port}" if word.startswith(_PORT) else word for word in command]
    os.execv(words[0], words)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        stand_by(*sys.argv[1:])
    else:
        sys.stdin.read()
