"""Authorization rules of docs/configuration.md, and a configuration with one user for each of their roles.

Used by `unit/security/` and `integration/test_security_attacks.py`; all users have the password `x`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
USERS = ("ops1", "node", "proxy", "shop", "billing", "team-a", "other")
# The example of earlier versions of the page: it allowed every action by default.
OPEN_RULES = {"rules": [{"principal": "BASIC_USER-ops*", "effect": "allow"},
                        {"principal": "*", "actions": ["QueueRead"], "domain": "bmq.test.*", "effect": "allow"},
                        {"principal": "*", "actions": ["QueueRead", "QueueWrite"], "effect": "deny"}],
              "default": "allow"}


def documented_rules() -> dict[str, Any]:
    """Return the example of the page."""
    text = PAGE.read_text().partition("## Authorization\n")[2]
    block = text[text.index('    "authorization": {'):]
    found: dict[str, Any] = json.loads(f"{{{block[:block.index(chr(10) + '    }')]}}}}}")
    return found["authorization"]  # type: ignore[no-any-return]


def secured_app(rules: dict[str, Any] | None) -> dict[str, Any]:
    """Return members of appConfig: all users with the password `x`, and the rules."""
    settings = [{"key": user, "value": {"stringVal": "x"}} for user in USERS]
    return {"authentication": {"authenticators": [{"name": "BasicAuthenticator", "settings": settings}]},
            "bmqtwist": {"authorization": rules} if rules is not None else {}}
