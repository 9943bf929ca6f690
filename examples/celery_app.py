"""Celery on BlazingMQ: needs a running broker (`make run`) and `pip install 'bmqtwist[kombu]' celery`.

    celery -A celery_app worker         # in one terminal, in this directory
    python celery_app.py                # in a second terminal
    celery -A celery_app inspect ping
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from celery import Celery, chord

import bmqtwist.kombu  # noqa: F401 - registers bmq://

results = Path(tempfile.gettempdir(), "celery-results")
results.mkdir(exist_ok=True)

app = Celery("celery_app", broker=os.environ.get("BMQ_URL", "bmq://localhost:30114"), backend=results.as_uri())
app.conf.broker_connection_retry_on_startup = True


@app.task(bind=True, acks_late=True, max_retries=3)  # confirmed after completion: redelivered if the worker dies
def square(self: Any, number: int) -> int:
    """Return the square, at the second attempt."""
    if not self.request.retries:
        raise self.retry(countdown=0.1)
    return number * number


@app.task
def total(numbers: list[int]) -> int:
    """Return the sum."""
    return sum(numbers)


if __name__ == "__main__":
    print(chord((square.s(n) for n in range(5)), total.s())().get(timeout=60))
