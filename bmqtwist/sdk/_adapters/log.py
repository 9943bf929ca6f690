"""The log of all sessions: the standard logger `bmqtwist.sdk`, silent until the application configures logging.

INFO: connections that come and go. WARNING: what a broker or a deadline refused. The texts are those of the core's `Note`
effects; nothing is logged per message.
"""

from __future__ import annotations

import logging

from bmqtwist.sdk._core.effects import Note

LOG = logging.getLogger("bmqtwist.sdk")
LOG.addHandler(logging.NullHandler())


def emit(note: Note, logger: logging.Logger = LOG) -> None:
    logger.log(note.level, "%s", note.text)
