"""Form of the values that Kubernetes puts into environment variables.

Called by `config/compose.py` for the broker and by `cli/connection.py` and `cli/shell/command.py` for clients. The variables
of the broker are listed in `config/compose.py`, those of clients are options in `cli/`.
"""

import re


def is_service_address(text: str) -> bool:
    """Return whether Kubernetes has set a variable: a Service `bmq` sets BMQ_PORT=tcp://10.0.0.1:30114 in each container."""
    return re.fullmatch(r"(tcp|udp|sctp)://.*", text) is not None
