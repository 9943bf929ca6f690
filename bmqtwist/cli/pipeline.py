"""`bmq pipeline`: Spark jobs over queues and storage files. Requires the extra `spark` and Java.

Under spark-submit the same commands run on a cluster: `spark-submit ... $(command -v bmq) pipeline report ...`. Started by
`main.py`. This module has the command line only; the jobs are in `spark/pipelines/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from bmqtwist.cli.exits import EXIT_NOT_ALL
from bmqtwist.cli.optiongroups import grouped_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _parse_settings(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for each in values:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"'{each}' should be name=value")
        found[name] = value
    return found


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Values of the Spark options: master, and settings by name."""

    master: str
    conf: dict[str, str]

    def session(self) -> SparkSession:
        """Check that pyspark and Java are installed, then start a session."""
        from bmqtwist.spark.local import check_java, check_pyspark

        check_pyspark()
        check_java()
        from bmqtwist.spark.local import session

        made = session(self.master, "bmq-pipeline", **{"spark.ui.showConsoleProgress": "false", **self.conf})
        made.sparkContext.setLogLevel("ERROR")
        return made


_spark_options = grouped_options(
    "spark", SparkSettings,
    click.option("--master", default="local[*]", show_default=True, help="Spark master: local[*], local[2], "
                 "spark://host:7077. Under spark-submit, its master is used."),
    click.option("--conf", multiple=True, callback=_parse_settings, metavar="NAME=VALUE",
                 help="A Spark setting. Repeatable."))


def _with_broker(broker: str, options: dict[str, str]) -> dict[str, str]:
    return {"bmq.bootstrap.servers": broker, **options}


_broker_options = grouped_options(
    "bmq", _with_broker,
    click.option("-b", "--broker", default="tcp://localhost:30114", show_default=True, envvar="BMQ_BROKER_URI",
                 help="tcp://host:port or tls://host:port, separated by commas."),
    click.option("--option", "options", multiple=True, callback=_parse_settings, metavar="NAME=VALUE",
                 help="An option of the source or sink, as listed in docs/spark.md (bmq.user=..). Repeatable."))


@click.group()
def pipeline() -> None:
    """Analyse queues and storage files on Spark: archive, report, replay, live."""


@pipeline.command()
@click.argument("sources")
@click.argument("target")
@click.option("--cluster", default="local", show_default=True, help="Name of the cluster, a column of the archive.")
@click.option("--no-payload", is_flag=True, help="Archive records without payloads and properties.")
@click.option("--live", is_flag=True, help="Include file sets that are still being written, up to their present end.")
@_spark_options
def archive(sources: str, target: str, cluster: str, no_payload: bool, live: bool, spark: SparkSettings) -> None:
    """Copy the records of finished file sets to Parquet, each once: records of earlier runs are skipped.

    SOURCES: storage directories or journals, separated by commas. TARGET: a directory.
    """
    session = spark.session()
    from bmqtwist.spark.pipelines.streams import archive as run

    click.echo(f"{run(session, sources, target, cluster, not no_payload, live)} records archived in {target}")


@pipeline.command()
@click.argument("source")
@click.argument("target")
@click.option("--replica", default="", help="Storage files of another node, to compare record by record.")
@click.option("--statistics", default="", help="JSON statistics logs of brokers, separated by commas: they alone contain "
              "latencies below one second.")
@click.option("--title", default="Broker report", show_default=True)
@_spark_options
def report(source: str, target: str, replica: str, statistics: str, title: str, spark: SparkSettings) -> None:
    """Write tables and an HTML report of a broker's activity.

    SOURCE: storage directories or journals, separated by commas, or the records of an archive. TARGET: a directory.
    """
    session = spark.session()
    from bmqtwist.spark.pipelines.report import report as run

    click.echo(f"{run(session, source, target, replica, title, statistics)}")


@pipeline.command()
@click.argument("target", default="bmqtwist.zip")
def package(target: str) -> None:
    """Write this package to a zip file, for a cluster whose workers do not have it installed.

    Use it with spark-submit --py-files bmqtwist.zip, and PYTHONPATH=bmqtwist.zip for the driver.
    """
    from bmqtwist.spark.local import package as run

    click.echo(str(run(target)))


@pipeline.command()
@click.argument("source")
@click.option("--to", "target", default="", help="Target queue. Default: the queue of each message.")
@grouped_options(
    "selection", dict,
    click.option("--queue", "queues", multiple=True, help="Only messages of this queue. Repeatable."),
    click.option("--since", default="", help="Only messages at or after this ISO time (UTC)."),
    click.option("--until", default="", help="Only messages before this ISO time (UTC)."),
    click.option("--where", "expression", default="",
                 help="Only messages that match this SQL condition; p['name'] is a property."))
@click.option("--name", default="replay", show_default=True, help="Name of this replay. GUIDs depend on it: a repeated "
              "replay under the same name is deduplicated.")
@click.option("--rate", default=0.0, type=click.FloatRange(0), help="Messages per second; 0 = no limit.")
@click.option("--dry-run", is_flag=True, help="Count the messages without posting them.")
@_broker_options
@_spark_options
def replay(source: str, selection: dict[str, Any], bmq: dict[str, str], spark: SparkSettings, **options: Any) -> None:
    """Post archived messages again, with new GUIDs and with properties that name their origin.

    SOURCE: the records of an archive, storage directories or journals.
    """
    session = spark.session()
    from bmqtwist.spark.pipelines.replay import MessageSelection, ReplayOptions
    from bmqtwist.spark.pipelines.replay import replay as run

    messages, posting = MessageSelection(**selection), ReplayOptions(**options)
    if posting.dry_run:
        click.echo(f"{run(session, source, bmq, messages, posting)} messages would be posted")
        return
    with click.progressbar(length=1, label="posting", show_pos=True) as bar:
        def on_progress(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)
        count = run(session, source, bmq, messages, posting, on_progress)
    click.echo(f"{count} messages posted")


@pipeline.command()
@click.argument("queues")
@click.argument("target")
@click.option("--window", default="10 seconds", show_default=True, help="Length of a window of statistics.")
@click.option("--trigger", default="10 seconds", show_default=True, help="Interval between two micro-batches.")
@click.option("--available-now", is_flag=True, help="Process the messages in the queues, then exit.")
@_broker_options
@_spark_options
def live(queues: str, target: str, window: str, trigger: str, available_now: bool, bmq: dict[str, str],
         spark: SparkSettings) -> None:
    """Consume queues and write statistics of their messages as Parquet, until Ctrl-C.

    QUEUES: URIs separated by commas, with ?id=APP for an application of a fanout queue. The messages are consumed.
    """
    session = spark.session()
    from bmqtwist.spark.pipelines.streams import live as run

    query = run(session, {"subscribe": queues, **bmq}, target, window,
                available_now=available_now, trigger=trigger)
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    finally:
        session.stop()
    if query.exception() is not None:
        raise SystemExit(EXIT_NOT_ALL)
