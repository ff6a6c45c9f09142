"""Programs of this package whose standard streams are closed."""

import subprocess
import sys

import pytest
import yaml
from whole_studies import make_spec


@pytest.mark.sampled(2)
@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_the_command_works_without_standard_streams(tmp_path, closed):
    """As of a service that closes them: it ended with 1 and no word."""
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(make_spec(tmp_path)))
    script = f'exec "$0" -m dpsweep validate "$1" {closed}'
    command = ["sh", "-c", script, sys.executable, str(tmp_path / "spec.yaml")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 0
