"""Log lines, log files, and severity thresholds."""

from __future__ import annotations

import errno
import io
import os
import re
from pathlib import Path

import pytest
from twisted.logger import Logger, LogPublisher

from bmqtwist import alarms
from bmqtwist.config.broker import LogController
from bmqtwist.errors import LocalError
from bmqtwist.logs import observer
from bmqtwist.logs.format import MESSAGE_CHARS_MAX, SEVERITIES, FileNames, Levels, LineFormat, LogEntry, date_text
from bmqtwist.logs.observer import RETRY_S, LogFile, LogObserver, Logs, TwistedReport
from bmqtwist.report import FailedFiles

WALL = 1795237237.248  # 21 November 2026, 05:00:37.248
RECORD = LogEntry(WALL, "INFO", "bmqtwist.link.session", "hello", "/src/session.py", 42, 17, 99)


def test_the_default_line_format_is_that_of_the_original() -> None:
    """Log collectors parse this format."""
    line = LineFormat("%d (%t) %s %F:%l %m\n").render(RECORD)
    assert line == "21NOV2026_05:00:37.248 (17) INFO session.py:42 hello\n"


def test_unknown_fields_of_a_line_pattern_are_left_unchanged() -> None:
    """A pattern of an existing configuration must not cause an error."""
    assert LineFormat("%p %c %f %% %a%A%u|%Z %i %I %D\\n\\t%n").render(RECORD) == (
        "99 bmqtwist.link.session /src/session.py % |%Z 2026-11-21T05:00:37Z 2026-11-21T05:00:37.248Z "
        "21NOV2026_05:00:37.248000\n\t\n")


def test_a_time_just_below_a_second_is_rounded_to_three_digits() -> None:
    """Log collectors could not parse such a line."""
    assert date_text(1.9999999).endswith(":02.000")


def test_control_characters_in_messages_are_escaped() -> None:
    """Log messages contain names and texts of clients."""
    line = LineFormat("%m").render(LogEntry(0.0, "INFO", "c", "a\x1b[2Jb\r\x07\nnext\tline"))
    assert line == "a\\x1b[2Jb\\x0d\\x07\nnext\tline"


def test_a_long_message_is_truncated() -> None:
    """A text of a peer cannot fill the disk with one line."""
    line = LineFormat("%m").render(LogEntry(0.0, "INFO", "c", "a" * (20 << 20)))
    assert len(line) < MESSAGE_CHARS_MAX + 100 and line.endswith("a... (20971520 characters)")


def test_the_last_matching_category_determines_the_threshold() -> None:
    """The severity threshold of one category can be raised alone."""
    levels = Levels("WARN", ["bmqtwist.link*:DEBUG:red", "BMQTWIST.LINK.TCP:ERROR:gray"])
    assert levels.threshold("bmqtwist.broker.broker") == SEVERITIES["WARN"]
    assert levels.threshold("bmqtwist.link.session") == SEVERITIES["DEBUG"]
    assert levels.threshold("bmqtwist.link.tcp") == SEVERITIES["ERROR"]
    assert levels.highest_threshold == SEVERITIES["DEBUG"]
    for broken in ("bmqtwist", "x:LOUD:red", ":INFO:red"):
        with pytest.raises(LocalError):
            Levels("INFO", [broken])


def test_file_names_contain_time_and_process_id() -> None:
    """The pattern of the original's sample configuration."""
    names = FileNames("logs/logs.%T.%p")
    assert names.name_at(WALL, 7) == "logs/logs.20261121_050037.7"
    assert FileNames("l-%Y%M%D-%h%m%s%%").name_at(WALL, 7) == "l-20261121-050037%"
    matcher = names.pattern()
    assert matcher.fullmatch("logs.20261121_050037.7")
    assert matcher.fullmatch("logs.20261121_050037.7.20261122_000000")
    assert not matcher.fullmatch("logs.txt") and not matcher.fullmatch("other.20261121_050037.7")


def test_a_full_log_file_is_rotated_without_losing_lines(tmp_path: Path) -> None:
    """Rotation with and without a time in the name."""
    for pattern in ("log.%T", "log"):
        wall = [WALL]
        folder = tmp_path / pattern.replace("%", "")
        folder.mkdir()
        file = LogFile(str(folder / pattern), 30, 0, lambda: wall[0])  # noqa: B023 (called in this iteration only)
        for number in range(9):
            file.write(f"line {number:04}\n")
            wall[0] += 0.1
        file.close()
        files = sorted(folder.iterdir())
        assert len(files) == 3, pattern
        text = "".join(sorted("".join(path.read_text() for path in files).splitlines(keepends=True)))
        assert text == "".join(f"line {number:04}\n" for number in range(9))


def test_a_log_file_is_rotated_after_a_day(tmp_path: Path) -> None:
    """The original rotates after a day, too."""
    wall = [WALL]
    file = LogFile(str(tmp_path / "log.%T"), 0, 0, lambda: wall[0])
    file.write("first\n")
    wall[0] += 86400
    file.write("second\n")
    file.close()
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["first\n", "second\n"]


def test_only_old_files_of_this_log_are_deleted(tmp_path: Path) -> None:
    """Other files in the directory must not be deleted."""
    for name, days in (("log.20200101_000000", 30), ("log.20200102_000000", 1), ("notes.txt", 30),
                       ("log.20200103_000000.gz", 30)):
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (WALL - days * 86400, WALL - days * 86400))
    file = LogFile(str(tmp_path / "log.%T"), 0, 7, lambda: WALL)
    assert list(file.delete_old_files()) == ["log.20200101_000000"]
    file.close()
    assert {path.name for path in tmp_path.iterdir()} == {
        "log.20200102_000000", "notes.txt", "log.20200103_000000.gz", "log.20261121_050037"}


def test_a_missing_log_directory_is_an_error_with_a_clear_text(tmp_path: Path) -> None:
    """The error says that the operator must create the directory, as with the original."""
    with pytest.raises(LocalError, match="Create the directory"):
        LogFile(str(tmp_path / "no" / "log"), 0, 0, lambda: WALL)


def test_a_full_disk_loses_lines_without_an_exception() -> None:
    """Every write to /dev/full fails."""
    failed = FailedFiles()
    file = LogFile("/dev/full", 0, 0, lambda: WALL, failed=failed)
    file.write("lost\n")
    file.write("lost\n")
    assert file.dropped_lines == 2 and failed.has("File '/dev/full'")


@pytest.mark.parametrize("pattern", ["log", "log.%T"])
def test_a_failed_rotation_continues_in_the_present_file_and_is_tried_again(tmp_path: Path, pattern: str,
                                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """Inodes are exhausted for a moment: no new file can be created, and no line is lost."""
    failed, wall, opened, refused = FailedFiles(), [WALL], observer._open, []

    def refuse(path: str) -> io.FileIO:
        refused.append(path)
        raise OSError(errno.ENOSPC, "No space left on device")
    file = LogFile(str(tmp_path / pattern), 10, 0, lambda: wall[0], failed=failed)
    monkeypatch.setattr(observer, "_open", refuse)
    for number in range(30):
        file.write(f"line {number:04}\n")
        wall[0] += RETRY_S / 10
    assert file.dropped_lines == 0 and len(list(tmp_path.iterdir())) == 1 and 2 <= len(refused) <= 4
    (path, (reason, retry)), = failed.items()
    assert path == str(tmp_path / pattern) and "cannot be rotated" in reason and "No space left" in reason
    monkeypatch.setattr(observer, "_open", opened)
    wall[0] += RETRY_S
    retry()
    assert not failed.items() and len(list(tmp_path.iterdir())) == 2
    file.write("last\n")
    file.close()
    lines = sorted("".join(each.read_text() for each in tmp_path.iterdir()).splitlines())
    assert lines == ["last", *(f"line {number:04}" for number in range(30))]


def test_a_rotation_of_a_file_that_another_program_has_moved(tmp_path: Path) -> None:
    file = LogFile(str(tmp_path / "log"), 5, 0, lambda: WALL)
    file.write("first\n")
    (tmp_path / "log").rename(tmp_path / "moved")
    file.write("second\n")
    file.close()
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"moved": "first\n", "log": "second\n"}


def test_lost_lines_are_counted_in_the_file(tmp_path: Path) -> None:
    """A pipe without a reader stands for a disk that fails for a moment."""
    failed = FailedFiles()
    file = LogFile(str(tmp_path / "log"), 0, 0, lambda: WALL, failed=failed)
    good, file._file = file._file, io.FileIO("/dev/full", "w")
    file.write("lost\nlost\n")
    file.write("lost\n")
    assert "cannot be written" in failed.items()[0][1][0]
    file._file = good
    file.write("written\n")
    file.close()
    assert not failed.items()
    assert (tmp_path / "log").read_text() == "(3 lines before this one could not be written)\nwritten\n"


def _observer(console: io.StringIO, threshold: str = "INFO") -> LogPublisher:
    return LogPublisher(LogObserver(None, LineFormat("%m"), console, LineFormat("%s %F %c %m\n"),
                                    SEVERITIES[threshold]))


def test_a_log_line_names_category_and_location_of_its_caller() -> None:
    """The line must not name the log module as its source."""
    console, copies = io.StringIO(), io.StringIO()
    report = TwistedReport(Levels("INFO"), copies, lambda: 0.0, _observer(console))
    report.info("%s and %d", "text", 5)
    report.warn("100% plain")
    report.debug("unwanted %s", "line")
    report.alarm(alarms.SYNC_FAILED, "about %s", "something")
    here = __name__
    assert console.getvalue().splitlines() == [
        f"INFO test_logs.py {here} text and 5", f"WARN test_logs.py {here} 100% plain",
        f"ERROR test_logs.py {here} ALARM [FILE_IO] sync-failed: about something"]
    assert not report.debugging


def test_a_repeated_alarm_is_logged_each_time_and_copied_once_a_minute() -> None:
    """Operators read the copy."""
    console, copies, now = io.StringIO(), io.StringIO(), [0.0]
    report = TwistedReport(Levels("INFO"), copies, lambda: now[0], _observer(console))
    for moment in (0.0, 30.0, 61.0):
        now[0] = moment
        report.alarm(alarms.PARTITION_READONLY, "disk is full")
    assert len(console.getvalue().splitlines()) == 3
    assert copies.getvalue() == "PANIC: PANIC [PARTITION_READONLY] disk is full\n" * 2


def test_a_closed_console_raises_no_exception() -> None:
    """`bmqbrkr | head` closes the pipe."""
    console = io.StringIO()
    console.close()
    TwistedReport(Levels("INFO"), console, lambda: 0.0, _observer(console)).alarm(alarms.DISPATCHER, "t")


def test_exceptions_logged_by_libraries_have_their_traceback() -> None:
    """Twisted logs exceptions that this package did not handle."""
    console = io.StringIO()
    logger = Logger("library", observer=_observer(console))
    try:
        raise KeyError("gone")
    except KeyError:
        logger.failure("while {what}", what="working")
    logger.debug("details")
    text = console.getvalue()
    assert text.startswith("FATAL - library while working") and "KeyError" in text and "details" not in text


def test_the_thresholds_of_file_and_console_are_configured_separately(tmp_path: Path) -> None:
    """The verbosity limits the file, the console threshold the console."""
    console, copies = io.StringIO(), io.StringIO()
    logs = Logs(LogController(file_name=str(tmp_path / "l"), console_severity_threshold="ERROR",
                              logging_verbosity="DEBUG", categories=()), console, copies)
    publisher = LogPublisher(logs.observer)
    report = TwistedReport(Levels("DEBUG"), copies, observer=publisher)
    report.debug("one")
    report.error("two")
    logs.close()
    assert re.fullmatch(r"\d\d[A-Z]{3}\d{4}_[\d:.]{12} \(\d+\) ERROR test_logs.py:\d+ two\n", console.getvalue())
    assert [line[-3:] for line in (tmp_path / "l").read_text().split("\n") if line] == ["one", "two"]
    assert logs.report.debugging
