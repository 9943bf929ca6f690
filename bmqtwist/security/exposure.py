"""What an operator should hear about a broker that strangers can reach."""

from __future__ import annotations

from ipaddress import ip_address

from bmqtwist.config.broker import Configuration


def is_loopback(address: str) -> bool:
    """Whether only this machine can connect to a listener at `address`."""
    if address == "localhost":
        return True
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def exposure_warnings(configuration: Configuration, open_to_anybody: bool, authorizes: bool) -> list[str]:
    """One sentence for each listener beyond loopback that is not protected, and one for the console."""
    found = []
    for listener in configuration.listeners:
        if is_loopback(listener.address):
            continue
        missing = [text for text, absent in (
            ("TLS (listeners[].tls)", not listener.tls), ("authentication (appConfig.authentication)", open_to_anybody),
            ("authorization (appConfig.bmqtwist.authorization)", open_to_anybody and not authorizes)) if absent]
        if missing:
            found.append(f"#SECURITY Listener '{listener.name}' at {listener.address}:{listener.port} can be reached from "
                         f"other machines without {', '.join(missing)}. Listen at 127.0.0.1, or configure what is "
                         "missing: whoever reaches an open broker reads and writes every queue and runs commands.")
    http = configuration.extension.http
    if http.port and not is_loopback(http.address):
        if http.users:
            said = ("asks who they are; without a reverse proxy that speaks TLS before it, passwords can be read on their "
                    "way. Metrics and health are shown to anybody.")
        else:
            said = ("asks nobody who they are: metrics and health are shown to anybody, its pages to this machine alone. "
                    "Configure http.users, or listen at 127.0.0.1.")
        found.append(f"#SECURITY The console at {http.address}:{http.port} can be reached from other machines and {said}")
    return found
