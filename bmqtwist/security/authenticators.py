"""Security of one broker, assembled from its configuration: authenticators, authorizer, credential for other brokers.

`build_security` returns a `Security` or raises LocalError. `Security.new_authentication(peer)` creates the
`link.authentication.Authentication` of one connection; `Security.allows(...)` calls the authorizer, if one is configured.
`daemon/assemble.py` calls `build_security`, and `daemon/preflight.py` to check a configuration. `exposure.py` lists what a
configuration leaves open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock

from bmqtwist import alarms
from bmqtwist.config.broker import PASSWORD_HASH_PREFIX, AppConfig, AuthenticatorConfig
from bmqtwist.errors import LocalError
from bmqtwist.link.authentication import ANONYMOUS, Authentication, Authenticator, Credential, Denied, Granted, Outcome
from bmqtwist.link.credentials import CredentialProvider
from bmqtwist.link.unauthenticated import address_of, network_of
from bmqtwist.report import Report, shown
from bmqtwist.security import authorization as rules
from bmqtwist.security.login_limiter import LoginLimiter
from bmqtwist.security.passwords import WORK, StoredPassword

BASIC_LIFETIME_MS = 600_000
TEST_LIFETIME_MS = 600_000
CHECKS_MAX = 64  # credentials checked at the same time
CREDENTIAL_BYTES_MAX = 4096  # user and password of one BASIC request
BASIC = "BASIC"
ANONYMOUS_PRINCIPAL, TEST_PRINCIPAL = "anonymous", "TEST_USER"
BASIC_USER = "BASIC_USER-"  # prefix of a user's name in a principal
ANY_USER = f"{BASIC_USER}\0"  # matches only patterns that match every user: no name contains it

PluginSettings = Mapping[str, rules.PluginValue]


class _BuiltIn:
    """Base of the built-in authenticators, which need no start or stop."""

    def start(self) -> None:
        """Do nothing at the start of the broker."""

    def stop(self) -> None:
        """Do nothing at the stop of the broker."""


class AnonAuthenticator(_BuiltIn):
    """Mechanism ANONYMOUS: accepts or rejects all clients. Settings: shouldPass, a bool [true]."""

    mechanism = ANONYMOUS
    blocking = False

    def __init__(self, settings: PluginSettings) -> None:
        should_pass = settings.get("shouldPass", True)
        if not isinstance(should_pass, bool):
            raise LocalError("AnonAuthenticator: 'shouldPass' must be a boolVal.")
        self.should_pass = should_pass

    def authenticate(self, data: bytes, peer: str) -> Outcome:
        """Return the same outcome for all clients, without lifetime."""
        return Granted(ANONYMOUS_PRINCIPAL) if self.should_pass else Denied("Authentication rejected by AnonAuthenticator")


class BasicAuthenticator(_BuiltIn):
    """Mechanism BASIC, data `user:password`. Settings: one entry per user, a password or its hash (`passwords.py`).

    Failures are limited by `login_limiter.py`. Credentials of one user at one address are checked one after the other, so
    that attempts at once are not more than in sequence; a check takes as long for an unknown user as for a known one.
    """

    mechanism = BASIC

    def __init__(self, settings: PluginSettings, now: Callable[[], float]) -> None:
        self._users: dict[bytes, StoredPassword] = {}
        for user, secret in settings.items():
            if not isinstance(secret, str) or not user or ":" in user:
                raise LocalError(f"BasicAuthenticator: the password of user '{user}' must be a stringVal, and a user's "
                                 "name must not be empty or contain a colon.")
            self._users[user.encode()] = StoredPassword(secret)
        hashed = [stored for stored in self._users.values() if stored.is_hash]
        self.blocking = bool(hashed)
        self._dummy = max(hashed, key=lambda stored: stored.work).unmatched() if hashed else StoredPassword("")
        self._limiter, self._now, self._lock = LoginLimiter(), now, Lock()
        self._checks = [Lock() for _ in range(CHECKS_MAX)]  # by user and address

    @property
    def users(self) -> int:
        return len(self._users)

    @property
    def literal_users(self) -> list[str]:
        """Users whose password is in the configuration as plain text."""
        return [user.decode() for user, stored in self._users.items() if not stored.is_hash]

    @property
    def weak_users(self) -> list[str]:
        """Users whose hash costs an attacker less than one that `bmq password` makes now."""
        return [user.decode() for user, stored in self._users.items() if stored.is_hash and stored.work < WORK]

    def authenticate(self, data: bytes, peer: str) -> Outcome:
        """Return the principal `BASIC_USER-<user>` for ten minutes."""
        user, colon, password = data.partition(b":")
        name, address = user.decode(errors="replace"), address_of(peer)
        if not colon or len(data) > CREDENTIAL_BYTES_MAX or not name.isprintable():
            return Denied("Invalid authentication payload format. Expected 'username:password'")
        with self._checks[hash((name, network_of(address))) % CHECKS_MAX]:
            with self._lock:
                wait = self._limiter.wait_seconds(address, name, self._now())
                if wait > 0:
                    return Denied(f"Too many failed logins of user '{name}' or from its address. Try again in "
                                  f"{int(wait) + 1} s")
                self._limiter.on_attempt(address, name, self._now())
            if not self._matches(self._users.get(user), password):
                return Denied(f"Invalid username or password for user '{name}'")
            with self._lock:
                self._limiter.on_success(address, name)
        return Granted(f"{BASIC_USER}{name}", BASIC_LIFETIME_MS)

    def _matches(self, stored: StoredPassword | None, password: bytes) -> bool:
        """Return whether a password is that of a user. Users with and without a hash take the same time."""
        if stored is None or self.blocking and not stored.is_hash:
            self._dummy.matches(password)
        return stored is not None and stored.matches(password)


class BasicCredentialProvider:
    """Credential of mechanism BASIC for other brokers. Settings: username and password."""

    def __init__(self, settings: PluginSettings) -> None:
        user, password = settings.get("username"), settings.get("password")
        if not isinstance(user, str) or not isinstance(password, str) or not user or ":" in user:
            raise LocalError("BasicCredentialProvider: 'username' and 'password' must be stringVals, and the username must "
                             "not be empty or contain a colon.")
        if password.startswith(PASSWORD_HASH_PREFIX):
            raise LocalError("BasicCredentialProvider: 'password' is a hash: other brokers require the password "
                             "itself.")
        self.principal = f"{BASIC_USER}{user}"
        self._credential = Credential(BASIC, f"{user}:{password}".encode())

    def credential(self) -> Credential:
        return self._credential


class TestAuthenticator(_BuiltIn):
    """Mechanism TEST: accepts all clients after a delay. Settings: sleepTimeMs, an int [0]. `sleep` blocks its thread."""

    __test__ = False  # not a test case; the name is the original's
    mechanism = "TEST"

    def __init__(self, settings: PluginSettings, sleep: Callable[[float], None]) -> None:
        pause = settings.get("sleepTimeMs", 0)
        if not isinstance(pause, int) or isinstance(pause, bool) or pause < 0:
            raise LocalError("TestAuthenticator: 'sleepTimeMs' must be an intVal that is not negative.")
        self._seconds, self._sleep = pause / 1000, sleep
        self.blocking = pause > 0

    def authenticate(self, data: bytes, peer: str) -> Outcome:
        if self._seconds:
            self._sleep(self._seconds)
        return Granted(TEST_PRINCIPAL, TEST_LIFETIME_MS)


class Security:
    """Authenticators by upper-case mechanism, anonymous credential, authorizer, and the credential for other brokers.
    `has_authenticator`: an authenticator is configured."""

    def __init__(self, authenticators: Mapping[str, Authenticator], anonymous: Credential | None,
                 authorizer: rules.Authorizer | None = None, provider: CredentialProvider | None = None,
                 has_authenticator: bool = False) -> None:
        self.authenticators, self.anonymous, self.authorizer = authenticators, anonymous, authorizer
        self.provider, self.has_authenticator = provider, has_authenticator

    def new_authentication(self, peer: str) -> Authentication:
        return Authentication(self.authenticators, self.anonymous, peer)

    def allows(self, principal: str, action: rules.Action, subject: str = "") -> bool:
        """Return whether `principal` may perform an action; True if no authorizer is configured."""
        return self.authorizer is None or self.authorizer.authorize(principal, action, subject)

    def broker_refusal(self, principal: str, action: rules.Action, subject: str = "") -> str:
        """Return the reason why a broker must not connect as a node or proxy (`action`); empty = it may.

        With an authenticator, a valid credential is not sufficient, because applications have valid credentials, too. The
        principal must equal the principal of this broker, or an authorization rule must allow the principal the action.
        """
        if not self.allows(principal, action, subject):
            return "Connection not authorized"
        if not self.has_authenticator or self._is_known_broker(principal, action, subject):
            return ""
        return (f"'{shown(principal)}' is not known as a broker: it is not the principal of this node's credentialProvider, "
                f"and no rule of bmqtwist.authorization allows it {action.value}")

    @property
    def open_principals(self) -> list[str]:
        """Principals that a peer obtains without a secret; those of custom authenticators are unknown."""
        found = [ANONYMOUS_PRINCIPAL if isinstance(each, AnonAuthenticator) else TEST_PRINCIPAL
                 for each in self.authenticators.values()
                 if isinstance(each, TestAuthenticator) or isinstance(each, AnonAuthenticator) and each.should_pass]
        if self.anonymous is not None and self.anonymous.mechanism.upper() == BASIC:
            found.append(f"{BASIC_USER}{self.anonymous.identity.partition(b':')[0].decode(errors='replace')}")
        return found

    def is_unrestricted(self, principal: str, action: rules.Action, subject: str = "") -> bool:
        """Return whether neither a rule nor a custom authorizer restricts the action of a principal; without a log entry."""
        return rules.is_unrestricted(self.authorizer, principal, action, subject)

    def may_be_broker(self, principal: str, action: rules.Action) -> bool:
        """Return whether a principal may connect as a node or a proxy, as `broker_refusal`; without a log entry."""
        return self.is_unrestricted(principal, action) and (not self.has_authenticator or self._is_known_broker(
            principal, action, ""))

    def _is_known_broker(self, principal: str, action: rules.Action, subject: str) -> bool:
        own = self.provider is not None and principal == self.provider.principal != ""
        return own or self.authorizer is not None and rules.allows_explicitly(self.authorizer, principal, action, subject)

    @property
    def is_administration_open(self) -> bool:
        """True if every client with a valid credential may run admin commands."""
        return self.has_authenticator and all(self.is_unrestricted(ANY_USER, action) for action in rules.ADMIN_ACTIONS)

    def start(self) -> None:
        """Start every authenticator; if one fails, stop the started ones."""
        started: list[Authenticator] = []
        for authenticator in self.authenticators.values():
            try:
                authenticator.start()
            except BaseException:
                for other in reversed(started):
                    other.stop()
                raise
            started.append(authenticator)

    def stop(self) -> None:
        for authenticator in self.authenticators.values():
            authenticator.stop()


FindClass = Callable[[str], Callable[..., object]]


def build_security(app: AppConfig, report: Report, sleep: Callable[[float], None], find: FindClass,
                   now: Callable[[], float]) -> Security:
    """Build authentication and authorization from appConfig. Raises LocalError.

    `sleep` and `now` are those of a clock, seconds, monotonic. `find` returns the class of a dotted name, or
    raises LocalError. Clients without credentials are accepted if no authenticator is configured, as with the original, else
    only with `anonymousCredential`.
    """
    known: dict[str, Authenticator] = {}
    for plugin in app.authentication.authenticators:
        made = _make_authenticator(plugin, sleep, find, now)
        mechanism = made.mechanism.upper()
        if mechanism in known:
            raise LocalError(f"Duplicate authenticator mechanism '{mechanism}' for plugin '{plugin.name}'. Each "
                             "mechanism can only have one active authenticator")
        if isinstance(made, BasicAuthenticator):
            _check_users(made, report)
        known[mechanism] = made
    anonymous = app.authentication.anonymous_credential
    credential: Credential | None = None
    if anonymous is None:
        if ANONYMOUS in known:
            raise LocalError("Provided anonymous authenticator but anonymous credential is not provided")
        if not known:
            credential = Credential(ANONYMOUS, b"")
            known[ANONYMOUS] = AnonAuthenticator({})
    elif anonymous.credential is not None:
        credential = Credential(anonymous.credential.mechanism, anonymous.credential.identity.encode())
        _add_anonymous(credential, known, report)
        if credential.mechanism.upper() not in known:
            raise LocalError(f"Anonymous credential mechanism '{credential.mechanism.upper()}' does not match any "
                             "configured authenticator")
    elif not known:
        known[ANONYMOUS] = AnonAuthenticator({})
    security = Security(known, credential, _make_authorizer(app, report, find), _make_provider(app, find),
                        bool(app.authentication.authenticators))
    if security.is_administration_open:
        report.warn("#AUTHORIZATION Every authenticated client may run admin commands, such as purge queues and remove "
                    "domains. Add rules for ExecuteAdminCommand to bmqtwist.authorization, with the default deny.")
    return security


def _add_anonymous(credential: Credential, known: dict[str, Authenticator], report: Report) -> None:
    """Accept clients without credentials although an authenticator is configured, and warn."""
    if not known:
        return
    if credential.mechanism.upper() == ANONYMOUS:
        known.setdefault(ANONYMOUS, AnonAuthenticator({}))
    report.warn("#AUTHENTICATION anonymousCredential admits clients without credentials, although an authenticator is "
                "configured. Remove it to reject them.")


def _check_users(basic: BasicAuthenticator, report: Report) -> None:
    if not basic.users:
        report.alarm(alarms.CREDENTIALS_MISSING, "No credentials found in configuration. Please double check if this is "
                                            "intended.")
    if basic.weak_users:
        report.warn("#AUTHENTICATION Password hashes of %d user(s) have a lower cost than recommended: make them again with "
                    "`bmq password`.", len(basic.weak_users))
    if basic.literal_users:
        report.warn("#AUTHENTICATION Passwords of %d user(s) are readable in the configuration: replace them by hashes "
                    "made with `bmq password`.", len(basic.literal_users))


def _make_authenticator(plugin: AuthenticatorConfig, sleep: Callable[[float], None], find: FindClass,
                        now: Callable[[], float]) -> Authenticator:
    settings = _settings(plugin)
    if plugin.name == "BasicAuthenticator":
        return BasicAuthenticator(settings, now)
    if plugin.name == "AnonAuthenticator":
        return AnonAuthenticator(settings)
    if plugin.name == "TestAuthenticator":
        return TestAuthenticator(settings, sleep)
    made = _find_plugin("Authenticator", plugin.name, find)(settings)
    mechanism, blocking = getattr(made, "mechanism", None), getattr(made, "blocking", None)
    methods = all(callable(getattr(made, name, None)) for name in ("start", "stop", "authenticate"))
    if not isinstance(mechanism, str) or not isinstance(blocking, bool) or not methods:
        raise LocalError(f"Authenticator plugin '{plugin.name}' needs the attributes mechanism (str) and blocking "
                         "(bool) and the methods start, stop and authenticate.")
    return made  # type: ignore[return-value]


def _make_provider(app: AppConfig, find: FindClass) -> CredentialProvider | None:
    plugin = app.authentication.credential_provider
    if plugin is None:
        return None
    if plugin.name == "BasicCredentialProvider":
        return BasicCredentialProvider(_settings(plugin))
    made = _find_plugin("Credential provider", plugin.name, find)(_settings(plugin))
    if not isinstance(getattr(made, "principal", None), str) or not callable(getattr(made, "credential", None)):
        raise LocalError(f"Credential provider plugin '{plugin.name}' needs the attribute principal (str) and the method "
                         "credential.")
    return made  # type: ignore[return-value]


def _make_authorizer(app: AppConfig, report: Report, find: FindClass) -> rules.Authorizer | None:
    plugin, table = app.authorization.authorizer, app.bmqtwist.authorization
    own = rules.RulesAuthorizer(table.rules, table.default, report) if table.rules or table.default == "deny" else None
    if plugin is None:
        return own
    chosen: rules.Authorizer
    if plugin.name == "DefaultAuthorizer":
        chosen = rules.DefaultAuthorizer(_settings(plugin), report)
    else:
        chosen = _find_plugin("Authorizer", plugin.name, find)(_settings(plugin), report)  # type: ignore[assignment]
        if not callable(getattr(chosen, "authorize", None)):
            raise LocalError(f"Authorizer plugin '{plugin.name}' needs the method authorize.")
    return chosen if own is None else rules.CombinedAuthorizer(own, chosen)


def _settings(plugin: AuthenticatorConfig) -> PluginSettings:
    return {setting.key: setting.value.value for setting in plugin.settings}


def _find_plugin(kind: str, name: str, find: FindClass) -> Callable[..., object]:
    try:
        return find(name)
    except LocalError as error:
        raise LocalError(f"{kind} plugin '{name}' not found or could not be created: {error}") from None
