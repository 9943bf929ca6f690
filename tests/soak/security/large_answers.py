"""placeholder"""
from typing import Any

from soak.security.target import Target


def run(target: Target, seconds: float) -> dict[str, Any]:
    return {}
