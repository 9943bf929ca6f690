"""Provider of domain configurations: files, redirects, caches, and validation rules.

Files are read by a `DomainSource` (on disk `load.DomainReader`); time is an argument. Errors are `Refused` with
category, code and text for clients, or `LocalError` with the text for administrators. Called by `broker/access.py` at
the first use of a domain and at its reconfiguration; `daemon/preflight.py` and `bmq config` check files with it. The
members of a domain are declared in `domain.py`. Delivery attempts are limited in `bmqtwist/limits.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from bmqtwist import alarms
from bmqtwist.config.clusters import ClusterProxyDefinition
from bmqtwist.config.declare import ConfigError, Finding, decode_text
from bmqtwist.config.domain import Consistency, DomainConfig, DomainDefinition, DomainVariant, Eventual
from bmqtwist.config.text import bracketed
from bmqtwist.errors import Category, LocalError, Refused
from bmqtwist.limits import DELIVERY_ATTEMPTS_MAX
from bmqtwist.queue.expression import ExpressionError, compile_expression
from bmqtwist.queue.mode import QueueMode
from bmqtwist.report import ListReport, Report

FILES_READ_MAX = 2  # the file of a domain, and that of its redirect
STAMP_PERIOD_S = 60.0  # interval between two checks of the configuration directory for changes
CONTENT_CHARS_MAX = 1024  # of an invalid file, and of the reasons, in the answer
NAME_CHARS_MAX = 200  # a file name has at most 255 bytes
CODE_READ, CODE_DECODE, CODE_REDIRECT, CODE_CONFIG = -1, -2, -3, -10

_NAME = re.compile(r"[-a-zA-Z0-9._~]+")

Compile = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class DomainFile:
    """A file of a source. `text` None: the file is absent (`missing`) or unreadable."""

    path: str
    text: str | None
    missing: bool = False

    @property
    def error_text(self) -> str:
        if self.missing:
            return f"Domain file '{self.path}' doesn't exist"
        return f"Unable to open domain file '{self.path}'"


class DomainSource(Protocol):
    """Source of the files of domains."""

    def read(self, name: str) -> DomainFile:
        """Read `domains/<name>.json`."""

    def read_proxy_cluster(self, name: str) -> DomainFile:
        """Read `proxyclusters/<name>.json`."""

    def stamp(self) -> int:
        """Return a number that changes when a file is added to or removed from the configuration directory."""

    def names(self) -> list[str]:
        """Return the names of all domains, sorted."""


@dataclass(frozen=True, slots=True)
class ResolvedDomain:
    """A resolved name of a domain: the target of the redirect, if any, and the cluster."""

    name: str
    cluster: str


@dataclass(frozen=True, slots=True)
class LoadedDomain:
    """A domain ready to use."""

    name: str
    cluster: str
    config: DomainConfig


class DomainProvider:
    """Resolves and loads domains. A loaded domain has its configuration until `reconfigure`; the caches only avoid repeated
    reads of a file."""

    def __init__(self, source: DomainSource, cache_ttl_s: float, report: Report,
                 compile_text: Compile = compile_expression) -> None:
        self._source, self._ttl_s, self._report, self._compile = source, cache_ttl_s, report, compile_text
        self._resolved: dict[str, ResolvedDomain] = {}
        self._definitions: dict[str, tuple[float, DomainDefinition]] = {}  # name -> (expiry, content)
        self._noticed: dict[str, frozenset[str]] = {}  # warnings at the last read of the file
        self._stamp = 0
        self._stamp_due = float("-inf")

    def resolve(self, name: str, now: float) -> ResolvedDomain:
        """Resolve a name. Raises Refused: E_UNKNOWN with code -1 no file, -2 invalid file, -3 too many redirections."""
        self._check_directory(now)
        known = self._resolved.get(name)
        if known is not None:
            self._report.debug("Domain '%s' resolved from cache", name)
            return known
        target = name
        for _ in range(FILES_READ_MAX):
            variant = self._read_variant(name, target)
            if variant.definition is not None:
                self._resolved[name] = resolved = ResolvedDomain(target, variant.definition.location)
                return resolved
            self._report.info("Redirecting %s to %s", target, variant.redirect)
            target = variant.redirect or ""
        raise Refused(Category.E_UNKNOWN,
                      f"Too many redirections [domain: '{name}, redirections: {FILES_READ_MAX}']", CODE_REDIRECT)

    def definition(self, name: str, now: float) -> DomainDefinition:
        """Return the content of a domain's file, at most cache_ttl_s old. Raises Refused as `resolve` does."""
        cached = self._definitions.get(name)
        if cached is not None and now < cached[0]:
            return cached[1]
        self._definitions.pop(name, None)
        variant = self._read_variant(name, name)
        if variant.definition is None:
            raise Refused(Category.E_UNKNOWN, f"invalid domain configuration for domain '{name}' "
                                              "(not a domain definition)", CODE_DECODE)
        self._definitions[name] = now + self._ttl_s, variant.definition
        return variant.definition

    def deduplication_s(self, name: str) -> float | None:
        """Return the deduplication time in a domain's file, None if the file is invalid. The caches stay unchanged."""
        try:
            variant = self._read_variant(name, name)
            if variant.redirect:
                variant = self._read_variant(name, variant.redirect)
        except Refused:
            return None
        return variant.definition.parameters.deduplication_time_ms / 1000 if variant.definition is not None else None

    def load_resolved(self, resolved: ResolvedDomain, now: float) -> LoadedDomain:
        """Load a domain at a member of its cluster. Raises Refused (E_REFUSED, -10) if its configuration is invalid."""
        try:
            config = normalise(self.definition(resolved.name, now).parameters, resolved, self._report)
            complaint = validate_definition(config, self._compile)
            if not complaint:
                self._warn_of_unlisted_apps(resolved.name, config)
                return LoadedDomain(resolved.name, resolved.cluster, config)
            reason = "Failed configuring domain"
        except Refused as refused:
            complaint, reason = refused.message, "Error decoding configuration"
        self._report.error("#DOMAINMANAGER_INVALID_CONFIG Domain '%s': %s", resolved.name, complaint)
        raise Refused(Category.E_REFUSED,
                      f"Attempt failed. Details: ConfigProvider failed to load domain config [ domain = "
                      f"'{resolved.name}' configProviderError = '{reason}'' ]", CODE_CONFIG)

    def load(self, name: str, now: float) -> LoadedDomain:
        return self.load_resolved(self.resolve(name, now), now)

    def reconfigure(self, name: str, loaded: Mapping[str, LoadedDomain], now: float) -> LoadedDomain:
        """Read a file again for `DOMAINS RECONFIGURE`, and return its domain; equal to the loaded one = no change.

        `loaded`: the loaded domains by name. Raises LocalError with the text for the administrator.
        """
        self._definitions.pop(name, None)
        if name not in loaded:
            try:
                resolved = self.resolve(name, now)
                if resolved.name not in loaded:
                    self._definitions.pop(resolved.name, None)
                    return self.load_resolved(resolved, now)
            except Refused:
                raise LocalError(f"Domain '{name}' doesn't exist") from None
            name = resolved.name
            self._definitions.pop(name, None)
        old = loaded[name]
        try:
            parameters = self.definition(name, now).parameters
        except Refused as refused:
            raise LocalError(refused.message) from None
        new = normalise(parameters, ResolvedDomain(name, old.cluster), self._report)
        if new == old.config:
            return old
        complaint = validate_definition(new, self._compile) or check_reconfigure(old.config, new)
        if complaint:
            raise LocalError(f"error = '{complaint}' config = '{bracketed(new)}'")
        self._warn_of_unlisted_apps(name, new)
        return LoadedDomain(name, old.cluster, new)

    def preview(self, name: str, loaded: Mapping[str, LoadedDomain], now: float) -> DomainConfig:
        """Return the configuration that `reconfigure` would apply, without logging. Raises LocalError as it does."""
        return DomainProvider(self._source, 0.0, ListReport(), self._compile).reconfigure(name, loaded, now).config

    def names(self) -> list[str]:
        return self._source.names()

    def proxy_cluster(self, name: str) -> ClusterProxyDefinition:
        """Return a proxy cluster defined in `proxyclusters/`. Raises Refused (E_REFUSED, -10)."""
        file = self._source.read_proxy_cluster(name) if _is_name(name) else DomainFile(name, None, missing=True)
        notices: list[Finding] = []
        try:
            if file.text:
                return decode_text(ClusterProxyDefinition, file.text, file.path, notices)
        except ConfigError as error:
            self._report.error("%s", error)
        text = f"Fetch proxy definition failed for cluster: '{name}', file: '{file.path}' is not readable or empty"
        raise Refused(Category.E_REFUSED, f"{text}. Details: cluster = {name} status = [ category = E_REFUSED "
                                          f'code = {CODE_CONFIG} message = "{text}" ]', CODE_CONFIG)

    def clear_resolver(self, name: str | None = None) -> None:
        """Remove a resolved name (None = all) from the cache. Raises LocalError if it is not in the cache."""
        _clear_cache(self._resolved, name)

    def clear_files(self, name: str | None = None) -> None:
        """Remove the content of a file (None = of all) from the cache. Raises LocalError if it is not in the cache."""
        _clear_cache(self._definitions, name)

    def drop_domain(self, name: str) -> None:
        """Remove a deleted domain from all caches, including redirects to it."""
        self._definitions.pop(name, None)
        self._noticed.pop(name, None)
        self._resolved = {alias: to for alias, to in self._resolved.items() if name not in (alias, to.name)}

    def _check_directory(self, now: float) -> None:
        if now < self._stamp_due:
            return
        self._stamp_due = now + STAMP_PERIOD_S
        stamp = self._source.stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            self._resolved.clear()

    def _read_variant(self, asked: str, name: str) -> DomainVariant:
        file = self._source.read(name) if _is_name(name) else DomainFile(name, None, missing=True)
        if file.text is None:
            raise Refused(Category.E_UNKNOWN, file.error_text, CODE_READ)
        notices: list[Finding] = []
        try:
            variant = decode_text(DomainVariant, file.text, file.path, notices)
        except ConfigError as error:
            reasons, content = str(error)[:CONTENT_CHARS_MAX], file.text[:CONTENT_CHARS_MAX]
            raise Refused(Category.E_UNKNOWN, f"Error while decoding domain configuration [domain: '{asked}', rc: -1, "
                          f"error: '{reasons}', from content: '{content}']", CODE_DECODE) from None
        texts = frozenset(map(str, notices))
        for text in sorted(texts - self._noticed.get(name, frozenset())):
            self._report.warn("%s", text)
        self._noticed[name] = texts
        return variant

    def _warn_of_unlisted_apps(self, name: str, config: DomainConfig) -> None:
        for app_id in unlisted_apps(config):
            self._report.warn("Domain '%s': subscriptions: appId '%s' is not in appIDs, its subscription is ignored",
                              name, app_id)


def normalise(config: DomainConfig, resolved: ResolvedDomain, report: Report) -> DomainConfig:
    """Correct a configuration and log it: strong consistency of a broadcast domain, too many delivery attempts. Strong
    consistency of a domain in memory is only logged."""
    if config.mode.kind == QueueMode.BROADCAST and config.strong:
        report.alarm(
            alarms.BROADCAST_DOMAIN_STRONG,
            "%s, %s: A broadcast domain cannot be of strong consistency. Updated this domain's "
            "consistency to eventual. Set eventual consistency in the domain's file to avoid this alarm.", resolved.cluster,
            resolved.name)
        config = replace(config, consistency=Consistency(eventual=Eventual()), ack_copies=None)
    elif config.in_memory and config.strong:
        report.warn("%s, %s: messages of a domain in memory do not survive a restart, even with strong consistency",
                    resolved.cluster, resolved.name)
    if config.max_delivery_attempts > DELIVERY_ATTEMPTS_MAX:
        report.warn("%s, %s: maxDeliveryAttempts is %d, above the maximum of %d; %d is used", resolved.cluster,
                    resolved.name, config.max_delivery_attempts, DELIVERY_ATTEMPTS_MAX, DELIVERY_ATTEMPTS_MAX)
        config = replace(config, max_delivery_attempts=DELIVERY_ATTEMPTS_MAX)
    return config


def validate_definition(config: DomainConfig, compile_text: Compile = compile_expression) -> str:
    """Return the errors of a configuration, those of the first failed check; "" = valid."""
    checks = (_check_limits(config), _check_subscriptions(config, compile_text), _check_mode(config), _check_copies(config))
    return next((complaint for complaint in checks if complaint), "")


def check_reconfigure(old: DomainConfig, new: DomainConfig) -> str:
    """Return the reason why `new` cannot replace `old`; "" = it can."""
    if old.mode.kind != new.mode.kind:
        return (f"Reconfiguration of domain routing mode is not allowed (was '{bracketed(old.mode)}', changed to "
                f"'{bracketed(new.mode)}')")
    if old.in_memory != new.in_memory:
        return (f"Reconfiguration of storage type is not allowed (was '{bracketed(old.storage.config)}', changed to "
                f"'{bracketed(new.storage.config)})")
    return ""


def _check_limits(config: DomainConfig) -> str:
    complaints = []
    for limits in (config.storage.domain_limits, config.storage.queue_limits):
        for name, ratio in (("messagesWatermarkRatio", limits.messages_watermark_ratio),
                            ("bytesWatermarkRatio", limits.bytes_watermark_ratio)):
            if not 0 <= ratio <= 1:
                complaints.append(f"'{name}' must be in range [0; 1], got: {ratio:g}")
        for name, count in (("messages", limits.messages), ("bytes", limits.bytes)):
            if count < 0:
                complaints.append(f"'{name}' must not be negative, got: {count}")
    return "\n".join(complaints)


def _check_subscriptions(config: DomainConfig, compile_text: Compile) -> str:
    complaints = []
    for subscription in config.subscriptions:
        expression = subscription.expression
        if expression.version != "E_VERSION_1":
            complaints.append(f"Unsupported version: [ expression: {bracketed(expression)} ]")
        elif expression.text:
            try:
                compile_text(expression.text)
            except ExpressionError as error:
                complaints.append(f"Expression validation failed: [ expression: {bracketed(expression)}, rc: "
                                  f'{error.code}, reason: "{error.message}" ]')
    app_ids = [subscription.app_id for subscription in config.subscriptions]
    if config.mode.kind != QueueMode.FANOUT and len(app_ids) > 1:  # the only one applies, whatever its appId
        complaints.append(f"A {config.mode.kind} domain has at most one subscription, found {len(app_ids)}")
    elif len(set(app_ids)) != len(app_ids):
        complaints.append("Two subscriptions have the same appId")
    return "\n".join(complaints)


def _check_mode(config: DomainConfig) -> str:
    if config.mode.kind == QueueMode.BROADCAST and not config.in_memory:
        return "A broadcast domain must have its storage in memory"
    if len(set(config.app_ids)) != len(config.app_ids) or "" in config.app_ids:
        return "'appIDs' must be different from each other and not empty"
    return ""


def _check_copies(config: DomainConfig) -> str:
    fit, kind = (("majority", "all"), "strong") if config.strong else (("none", "one"), "eventual")
    if config.copies in fit:
        return ""
    return f"'ackCopies' of a domain with {kind} consistency is one of {', '.join(fit)}, got: {config.copies}"


def unlisted_apps(config: DomainConfig) -> list[str]:
    """Return the apps with a subscription that are not in `appIDs` of a fanout domain."""
    if config.mode.kind != QueueMode.FANOUT:
        return []
    return [each.app_id for each in config.subscriptions if each.app_id not in config.app_ids]


def check_domain_text(file: DomainFile, problems: list[Finding], warnings: list[Finding],
                      lines: dict[tuple[str, str], int] | None = None) -> DomainVariant | None:
    """Check the file of one domain and add findings to the lists; return its content, None = invalid."""
    if file.text is None:
        problems.append(Finding(file.path, 0, "", file.error_text))
        return None
    try:
        variant = decode_text(DomainVariant, file.text, file.path, warnings, lines)
    except ConfigError as error:
        problems += error.findings
        return None
    if variant.definition is None:
        return variant
    config, path = variant.definition.parameters, "definition.parameters"
    complaint = validate_definition(config)
    if complaint:
        problems += [Finding(file.path, 0, path, line) for line in complaint.splitlines()]
        return None
    warnings += [Finding(file.path, 0, f"{path}.subscriptions", f"appId '{app_id}' is not in appIDs, its subscription "
                         "is ignored") for app_id in unlisted_apps(config)]
    if config.mode.kind == QueueMode.BROADCAST and config.strong:
        warnings.append(Finding(file.path, 0, f"{path}.consistency", "a broadcast domain cannot have strong "
                                "consistency; eventual is used"))
    if config.max_delivery_attempts > DELIVERY_ATTEMPTS_MAX:
        warnings.append(Finding(file.path, 0, f"{path}.maxDeliveryAttempts", f"found {config.max_delivery_attempts}; "
                                f"the maximum {DELIVERY_ATTEMPTS_MAX} is used"))
    return variant


def _is_name(name: str) -> bool:
    """Return whether a name is a valid file name: it must not lead out of the directory."""
    return len(name) <= NAME_CHARS_MAX and _NAME.fullmatch(name) is not None


def _clear_cache(cache: dict[str, ResolvedDomain] | dict[str, tuple[float, DomainDefinition]], name: str | None) -> None:
    if name is None:
        cache.clear()
    elif cache.pop(name, None) is None:
        raise LocalError(f"Domain '{name}' doesn't exist")
