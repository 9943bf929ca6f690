"""`bmq cluster`: commands to run a cluster on this machine.

Started by `main.py`. Each command works on a `LocalCluster` of `local.py`; admin commands for the members of a cluster
are in `admin/operations.py`. Profiles of the elector are in `config/sample.py`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, get_args

import click

from bmqtwist.cli.cluster.local import (
    OUTPUT,
    RECORD,
    BrokerView,
    ClusterRecord,
    LocalCluster,
    leader_of,
    locked,
    problems,
)
from bmqtwist.cli.cluster.members import add_node, remove_node, replace_node
from bmqtwist.cli.cluster.processes import LOOPBACK, free_ports
from bmqtwist.cli.cluster.unsafe import unsafe_clear, unsafe_force
from bmqtwist.cli.exits import EXIT_NOT_ALL, Unreachable
from bmqtwist.config.broker import Durability
from bmqtwist.config.sample import ELECTORS, SampleBroker, sample_brokers
from bmqtwist.errors import LocalError

NODES, PROXIES, ELECTOR, DURABILITY = 3, 0, "fast", "group"
_NODES_MAX = 15
_KILL_SECONDS_MAX = 20.0
_print_line = partial(click.echo, err=True)

Command = Callable[..., Any]


def _directory_option(command: Command) -> Command:
    return click.option("--dir", "directory", default="bmq-cluster", show_default=True, envvar="BMQ_CLUSTER_DIR",
                        type=click.Path(file_okay=False, path_type=Path),
                        help="Directory of the cluster.  [env: BMQ_CLUSTER_DIR]")(command)


def _timeout_option(seconds: float, help_text: str) -> Callable[[Command], Command]:
    return click.option("--timeout", default=seconds, show_default=True, type=click.FloatRange(0, min_open=True),
                        help=help_text)


_until_healthy = _timeout_option(60.0, "Seconds to wait until the cluster is healthy.")
_until_stopped = _timeout_option(60.0, "Seconds to wait until a broker has stopped.")
_broker_argument = click.argument("name", metavar="BROKER")


@click.group()
def cluster() -> None:
    """Run several brokers on this machine as one cluster, and operate them.

    BROKER is n1, n2, ... (or 1, 2, ...) for a node, and p1, p2, ... for a proxy.
    """


@cluster.command()
@_directory_option
@click.option("--nodes", type=click.IntRange(1, _NODES_MAX), help=f"Number of nodes.  [default: {NODES}]")
@click.option("--proxies", type=click.IntRange(0, _NODES_MAX), help=f"Number of proxies.  [default: {PROXIES}]")
@click.option("--base-port", type=click.IntRange(1, 65535),
              help="First of the consecutive ports of brokers and consoles.  [default: free ports]")
@click.option("--durability", type=click.Choice(get_args(Durability)), help="Durability that an ACK guarantees.")
@click.option("--elector", type=click.Choice(list(ELECTORS)),
              help="fast: failover of the leader within 3 s. original: the timeouts of BlazingMQ, up to 24 s.")
@_until_healthy
def up(directory: Path, timeout: float, **options: Any) -> None:
    """Create a cluster and start it. If the directory contains a cluster, start its stopped brokers with their data.

    The command ends when the cluster is healthy: all brokers run, and the nodes follow one active leader.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory):
        if (directory / RECORD).exists():
            found = LocalCluster.load(directory, _print_line)
        else:
            nodes, proxies = options["nodes"], options["proxies"]
            count = NODES if nodes is None else nodes, PROXIES if proxies is None else proxies
            ports = _choose_ports(2 * sum(count), options["base_port"])
            record = ClusterRecord(sample_brokers(*count, ports), options["elector"] or ELECTOR,
                                   options["durability"] or DURABILITY)
            found = LocalCluster.make(directory, record, _print_line)
        _check_same(found, options)
        found.write_missing_files()
        found.start([each for each in found.brokers if not found.running_pid(each)])
        _print_status(found, found.wait_until_healthy(timeout, found.brokers))


def _choose_ports(count: int, first: int | None) -> list[int]:
    if first is None:
        return free_ports(count)
    if first + count > 65536:
        raise LocalError(f"--base-port {first}: {count} ports are needed, and 65535 is the last one")
    return list(range(first, first + count))


def _check_same(found: LocalCluster, options: dict[str, Any]) -> None:
    """Refuse options that differ from those of the existing cluster."""
    count = sum(1 for each in found.brokers if each.node_id)
    has = {"nodes": count, "proxies": len(found.brokers) - count, "base_port": found.brokers[0].port,
           "durability": found.record.durability, "elector": found.record.elector}
    for name, there in has.items():
        if options[name] not in (None, there):
            raise LocalError(f"the cluster in '{found.directory}' was created with --{name.replace('_', '-')} {there}, not "
                             f"{options[name]}: omit the option, or give another directory with --dir")


@cluster.command()
@_directory_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def status(directory: Path, as_json: bool) -> None:
    """Show the state of all brokers, the leader, and the health of the cluster. Exit code 1 if it is not healthy."""
    found = LocalCluster.load(directory, _print_line)
    views = found.inspect_all()
    wrong = problems(found.brokers, views)
    if as_json:
        click.echo(json.dumps(_status_tree(found, views, wrong)))
    else:
        for line in _format_table(found, views):
            click.echo(line)
        click.echo(f"not healthy: {'; '.join(wrong)}" if wrong else "healthy")
    raise SystemExit(EXIT_NOT_ALL if wrong else 0)


@cluster.command()
@_directory_option
@_broker_argument
def kill(directory: Path, name: str) -> None:
    """Kill a broker with SIGKILL: data that it has not written is lost."""
    with _locked_cluster(directory) as found:
        broker = _find_running(found, name)
        if found.send_signal([broker], signal.SIGKILL, _KILL_SECONDS_MAX):
            raise Unreachable(f"{broker.name} still runs {_KILL_SECONDS_MAX:g} s after SIGKILL: its disk may hang; check "
                              "the machine")


@cluster.command()
@_directory_option
@_broker_argument
@_until_stopped
def stop(directory: Path, name: str, timeout: float) -> None:
    """Stop a broker gracefully, and wait for the end of its process."""
    with _locked_cluster(directory) as found:
        found.stop([_find_running(found, name)], timeout)


@cluster.command()
@_directory_option
@_broker_argument
@_until_healthy
def restart(directory: Path, name: str, timeout: float) -> None:
    """Stop a broker gracefully if it runs, start it, and wait until all running brokers are healthy."""
    with _locked_cluster(directory) as found:
        _restart(found, found.broker(name), timeout)


@cluster.command()
@_directory_option
@_until_healthy
def roll(directory: Path, timeout: float) -> None:
    """Restart all brokers one by one, the leader last. Before each restart, wait until the cluster is healthy."""
    with _locked_cluster(directory) as found:
        views = found.inspect_all()
        wrong = problems(found.brokers, views)
        if wrong:
            raise LocalError(f"the cluster is not healthy ({'; '.join(wrong)}), and stopping another broker could interrupt "
                             f"its service. Correct this first: `bmq cluster up --dir {directory}` starts stopped brokers")
        leader = leader_of(found.brokers, views)[0]
        for broker in sorted(found.brokers, key=lambda each: each.name == leader):
            _restart(found, broker, timeout)
            _print_line(f"{broker.name}: the cluster is healthy again")


@cluster.command("add-node")
@_directory_option
@_until_healthy
def add(directory: Path, timeout: float) -> None:
    """Add a node to a running cluster, and wait until it has all data and is a member."""
    with _locked_cluster(directory) as found:
        added = add_node(found, partial(_restart, found, timeout=timeout), timeout)
        _print_line(f"{added.name}: is a member")


@cluster.command("remove-node")
@_directory_option
@_broker_argument
@_until_healthy
def remove(directory: Path, name: str, timeout: float) -> None:
    """Remove a node from a running cluster; its directory stays."""
    with _locked_cluster(directory) as found:
        remove_node(found, name, partial(_restart, found, timeout=timeout), timeout)
        _print_line(f"{name}: is no member any more")


@cluster.command("replace-node")
@_directory_option
@_broker_argument
@_until_healthy
def replace(directory: Path, name: str, timeout: float) -> None:
    """Replace a node by one with empty storage at another address, and wait until it has all data and is a member."""
    with _locked_cluster(directory) as found:
        replace_node(found, name, partial(_restart, found, timeout=timeout), timeout)
        _print_line(f"{name}: is a member")


@cluster.command()
@_directory_option
@_until_stopped
def down(directory: Path, timeout: float) -> None:
    """Stop all brokers gracefully. Data and configuration remain for the next `bmq cluster up`."""
    with _locked_cluster(directory) as found:
        if not any(map(found.running_pid, found.brokers)):
            _print_line("all brokers are down")
        found.stop(found.brokers, timeout)


@cluster.command()
@_directory_option
@_broker_argument
@click.option("-n", "--lines", default=50, show_default=True, type=click.IntRange(0), help="Number of lines.")
@click.option("-f", "--follow", is_flag=True, help="Print appended lines, until Ctrl-C.")
@click.option("--output", is_flag=True,
              help="Show the output of the broker instead of its log: alarms, and the reason of a failed start.")
def logs(directory: Path, name: str, lines: int, follow: bool, output: bool) -> None:
    """Show the end of the log of a broker."""
    found = LocalCluster.load(directory, _print_line)
    broker = found.broker(name)
    path = found.directory_of(broker) / OUTPUT if output else found.log(broker)
    if not path.exists():
        raise LocalError(f"{broker.name} has no '{path}' yet: it was not started, or ended before it wrote one; see "
                         f"`bmq cluster logs {broker.name} --output`")
    file = open(path, "rb")  # noqa: SIM115 - `read_appended` closes it after a rotation
    out = sys.stdout.buffer
    out.writelines(deque(file, maxlen=lines))
    out.flush()
    for data in read_appended(path, file) if follow else ():
        out.write(data)
        out.flush()
    file.close()


cluster.add_command(unsafe_force)
cluster.add_command(unsafe_clear)


# -- helpers ------------------------------------------------------------------------------------------------------------


@contextmanager
def _locked_cluster(directory: Path) -> Iterator[LocalCluster]:
    """Yield the cluster of a directory, locked against other commands."""
    LocalCluster.load(directory, _print_line)  # fails if there is no cluster, before a lock file is created
    with locked(directory):
        yield LocalCluster.load(directory, _print_line)


def _find_running(found: LocalCluster, name: str) -> SampleBroker:
    broker = found.broker(name)
    if not found.running_pid(broker):
        raise LocalError(f"{broker.name} is down already; `bmq cluster restart {broker.name} --dir {found.directory}` "
                         "starts it")
    return broker


def _restart(found: LocalCluster, broker: SampleBroker, timeout: float) -> None:
    """Restart a broker, and wait until it and the other running brokers are healthy."""
    others = [each for each in found.brokers if each is not broker and found.running_pid(each)]
    found.stop([broker], timeout)
    found.start([broker])
    found.wait_until_healthy(timeout, [broker, *others])
    down = [each.name for each in found.brokers if each is not broker and each not in others]
    if down:
        _print_line(f"{', '.join(down)}: down; `bmq cluster up --dir {found.directory}` starts stopped brokers")


def _print_status(found: LocalCluster, views: Mapping[str, BrokerView]) -> None:
    for line in _format_table(found, views):
        click.echo(line)
    click.echo(f"connect to {_url(found.brokers[-1])}; configuration, data and logs are in {found.directory.resolve()}")


def _url(broker: SampleBroker) -> str:
    return f"tcp://localhost:{broker.port}"


def _console_url(broker: SampleBroker) -> str:
    return f"http://{LOOPBACK}:{broker.http_port}/" if broker.http_port else ""


def _format_table(found: LocalCluster, views: Mapping[str, BrokerView]) -> list[str]:
    rows = [("BROKER", "ROLE", "LEADER", "TERM", "PID", "ADDRESS", "CONSOLE", "LOG", "HEALTH")]
    for each in found.brokers:
        view = views[each.name]
        rows.append((each.name, view.role or "-", view.leader or "-", str(view.term or "-"), str(view.pid or "-"),
                     _url(each), _console_url(each) or "-", str(found.log(each)), view.describe_problem(each) or "healthy"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _status_tree(found: LocalCluster, views: Mapping[str, BrokerView], wrong: list[str]) -> dict[str, Any]:
    leader, term = leader_of(found.brokers, views)
    rows = []
    for each in found.brokers:
        view = views[each.name]
        rows.append({"name": each.name, "kind": "node" if each.node_id else "proxy", "up": bool(view.pid), "pid": view.pid,
                     "role": view.role, "leader": view.leader, "leaderStatus": view.leader_status, "term": view.term,
                     "url": _url(each), "console": _console_url(each), "log": str(found.log(each).resolve()),
                     "ready": bool(view.role) and not view.not_ready_reason,
                     "health": view.describe_problem(each) or "healthy"})
    return {"directory": str(found.directory.resolve()), "healthy": not wrong, "problems": wrong, "leader": leader,
            "term": term, "elector": found.record.elector, "durability": found.record.durability, "brokers": rows}


_FOLLOW_POLL_S = 0.2


def read_appended(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    """Yield the data appended to the file, without end; after a rotation, the data of the new file."""
    while True:
        data = file.read()
        if data:
            yield data
            continue
        try:
            current, opened = os.stat(path), os.fstat(file.fileno())
        except FileNotFoundError:  # during a rotation
            current = opened = os.fstat(file.fileno())
        if (current.st_dev, current.st_ino) != (opened.st_dev, opened.st_ino):
            file.close()
            file = open(path, "rb")  # noqa: SIM115
        else:
            time.sleep(_FOLLOW_POLL_S)
