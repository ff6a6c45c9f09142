"""A stock MLflow server, and a browser that looks at it."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
_STARTS_IN_S = 120


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


class Server:
    """``mlflow server``, which may be killed and started again.

    Its database and files are in a folder, or where ``store`` and ``files`` say.
    """

    def __init__(self, folder: Path, *, store: str = "", files: str = "") -> None:
        self.folder, self.port = folder, free_port()
        self._store = store or f"sqlite:///{folder}/server.db"
        self._files = files or str(folder / "files")
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process = None

    def start(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-W", "ignore", "-m", "mlflow", "server", "--workers", "1",
                    "--backend-store-uri", self._store,
                    "--artifacts-destination", self._files,
                    "--host", "127.0.0.1", "--port", str(self.port),
                ],
                stdout=log, stderr=log, start_new_session=True,
                env={
                    **os.environ,
                    "MLFLOW_DISABLE_TELEMETRY": "true",
                    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                },
            )  # fmt: skip
        deadline = time.monotonic() + _STARTS_IN_S
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=2):
                    return
            except OSError:
                time.sleep(0.3)
        raise TimeoutError((self.folder / "server.log").read_text()[-2000:])

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def page_text(address: str, folder: Path, picture: Path | None = None) -> str:
    """Return the DOM of a page once it is drawn, and save what it looks like."""
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}", "--window-size=1500,1400",
        "--virtual-time-budget=30000",
    ]  # fmt: skip
    if picture is not None:
        subprocess.run(
            [*command, f"--screenshot={picture}", address],
            capture_output=True, timeout=180, check=True,
        )  # fmt: skip
    done = subprocess.run(
        [*command, "--dump-dom", address], capture_output=True, text=True, timeout=180, check=True
    )
    return done.stdout
