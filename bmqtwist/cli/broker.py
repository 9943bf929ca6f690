"""`bmq broker`: a broker with its data and a sample configuration in one directory, for first steps.

Started by `main.py`; it replaces its process by `bmqbrkr`. The files of the sample are in `config/sample.py`; several
brokers are started by `cluster/command.py`.
"""

from __future__ import annotations

import os
import sys

import click

from bmqtwist.config.load import BROKER_FILE
from bmqtwist.config.sample import PORT, sample_files
from bmqtwist.errors import LocalError

CONFIGURATION = "etc"  # relative to the data directory
CONSOLE_PORT = 30115
_RUN = "from bmqtwist.tap import bmqbrkr; bmqbrkr()"


@click.command()
@click.option("--data", default="bmq-data", show_default=True, type=click.Path(file_okay=False),
              help="Directory of configuration, storage and logs; created if missing.")
@click.option("-p", "--port", type=click.IntRange(0, 65535),
              help=f"Port for clients, instead of the configured one ({PORT}).")
@click.option("--console-port", type=click.IntRange(0, 65535),
              help=f"Port of console and metrics, instead of the configured one ({CONSOLE_PORT}); 0 = none.")
def broker(data: str, port: int | None, console_port: int | None) -> None:
    """Run a broker, until Ctrl-C.

    The first start writes a sample configuration with several domains to DATA/etc. Later starts do not overwrite it.
    """
    try:
        written = write_sample(os.path.join(data, CONFIGURATION))
    except OSError as error:
        raise LocalError(f"The configuration cannot be written to '{data}': {error}") from None
    path = os.path.abspath(os.path.join(data, CONFIGURATION))
    click.echo(f"Configuration {'written to' if written else 'read from'} {path}; data and logs are beside it.", err=True)
    click.echo("After STARTED, try:  bmq produce bmq://bmq.test.persistent.priority/first hello", err=True)
    os.chdir(data)  # paths in the configuration are relative to it
    arguments = [] if port is None else ["-p", str(port)]
    environment = os.environ | ({} if console_port is None else {"BMQ_HTTP_PORT": str(console_port)})
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-c", _RUN, *arguments, CONFIGURATION], environment)


def write_sample(directory: str) -> bool:
    """Write the sample configuration unless the directory has a configuration. Return whether it was written."""
    if os.path.exists(os.path.join(directory, BROKER_FILE)):
        return False
    files = sample_files(http_port=CONSOLE_PORT)
    for name in sorted(files, key=lambda name: name == BROKER_FILE):  # last: its presence marks a complete directory
        path = os.path.join(directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(files[name])
    return True
