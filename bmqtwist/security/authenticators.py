"""The broker's side of security: the authenticators that come along, and the start-up rules that join them up.

`build_security` turns configuration into one `Security`, or says what is wrong with it. `Security.connection(peer)`
makes the `link.authentication.Authentication` of one connection; `Security.allows(...)` asks the authorizer, if any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import ip_address

from bmqtwist.config.broker import PASSWORD_HASH_PREFIX, AppConfig, AuthenticatorConfig, Configuration
from bmqtwist.errors import LocalError
from bmqtwist.link.authentication import Authentication, Authenticator, Credential, Denied, Granted, Outcome
from bmqtwist.link.credentials import CredentialProvider
from bmqtwist.report import Report, shown
from bmqtwist.security import authorization as rules
from bmqtwist.security.passwords import StoredPassword, make_hash

BASIC_LIFETIME_MS = 600_000
TEST_LIFETIME_MS = 600_000
CREDENTIAL_BYTES_MAX = 4096  # user and password of one BASIC request
ANONYMOUS = "ANONYMOUS"
BASIC_USER = "BASIC_USER-"  # before the name of the user, in a principal

Settings = Mapping[str, rules.Setting]


class _BuiltIn:
    """An authenticator of this package: it needs neither start nor stop."""

    def start(self) -> None:
        """Nothing to get ready."""

    def stop(self) -> None:
        """Nothing to let go."""


class AnonAuthenticator(_BuiltIn):
    """Mechanism ANONYMOUS: lets everybody in, or nobody. Settings: shouldPass, a bool [true]."""

    mechanism = ANONYMOUS
    blocking = False

    def __init__(self, settings: Settings) -> None:
        should_pass = settings.get("shouldPass", True)
        if not isinstance(should_pass, bool):
            raise LocalError("AnonAuthenticator: 'shouldPass' must be a boolVal.")
        self._should_pass = should_pass

    def authenticate(self, data: bytes, peer: str) -> Outcome:
        """The same for everybody; no lifetime."""
        return Granted("anonymous") if self._should_pass else Denied("Authentication rejected by AnonAuthenticator")


class BasicAuthenticator(_BuiltIn):
    """Mechanism BASIC, data `user:password`. Settings: one entry per user, a password or its hash (see passwords)."""

    mechanism = "BASIC"

    def __init__(self, settings: Settings) -> None:
        self._users: dict[bytes, StoredPassword] = {}
        for user, secret in settings.items():
            if not isinstance(secret, str) or not user or ":" in user:
                raise LocalError(f"BasicAuthenticator: the password of user '{user}' must be a stringVal, and a user's "
                                 "name must not be empty or hold a colon.")
            self._users[user.encode()] = StoredPassword(secret)
        self.blocking = any(stored.is_hash for stored in self._users.values())
        # An unknown user must take as long to refuse as a known one.
        self._nobody = StoredPassword(make_hash("nobody", bytes(16)) if self.blocking else "")

    @property
    def users(self) -> int:
        return len(self._users)

    @property
    def literal_users(self) -> list[str]:
        """Users whose password stands in the configuration as it is."""
        return [user.decode() for user, stored in self._users.items() if not stored.is_hash]

    def authenticate(self, data: bytes, peer: str) -> Outcome:
        """Principal `BASIC_USER-<user>` for ten minutes."""
        user, colon, password = data.partition(b":")
        name = user.decode(errors="replace")
        if not colon or len(data) > CREDENTIAL_BYTES_MAX or not name.isprintable():
            return Denied("Invalid authentication payload format. Expected 'username:password'")
        stored = self._users.get(user)
        if not (stored or self._nobody).matches(password) or stored is None:
            return Denied(f"Invalid username or password for user '{name}'")
        return Granted(f"{BASIC_USER}{name}", BASIC_LIFETIME_MS)


class BasicCredentialProvider:
    """Shows mechanism BASIC to other brokers. Settings: username and password, as the other brokers know them."""

    def __init__(self, settings: Settings) -> None:
        user, password = settings.get("username"), settings.get("password")
        if not isinstance(user, str) or not isinstance(password, str) or not user or ":" in user:
            raise LocalError("BasicCredentialProvider: 'username' and 'password' must be stringVals, and the username must "
                             "not be empty or hold a colon.")
        if password.startswith(PASSWORD_HASH_PREFIX):
            raise LocalError("BasicCredentialProvider: 'password' is a hash: the other brokers have to be shown the "
                             "password itself.")
        self.principal = f"{BASIC_USER}{user}"
        self._credential = Credential("BASIC", f"{user}:{password}".encode())

    def credential(self) -> Credential:
        return self._credential


class TestAuthenticator(_BuiltIn):
    """Mechanism TEST: passes after a while. Settings: sleepTimeMs, an int [0]. `sleep` is given by whoever may wait."""

    __test__ = False  # the name is the original's; this is no test case
    mechanism = "TEST"

    def __init__(self, settings: Settings, sleep: Callable[[float], None]) -> None:
        pause = settings.get("sleepTimeMs", 0)
        if not isinstance(pause, int) or isinstance(pause, bool) or pause < 0:
            raise LocalError("TestAuthenticator: 'sleepTimeMs' must be an intVal that is not negative.")
        self._seconds, self._sleep = pause / 1000, sleep
        self.blocking = pause > 0

    def authenticate(self, data: bytes, peer: str) -> Outcome:
        if self._seconds:
            self._sleep(self._seconds)
        return Granted("TEST_USER", TEST_LIFETIME_MS)


class Security:
    """Authenticators by upper-case mechanism, the anonymous credential, the authorizer, and what we show to other brokers.
    `guarded`: an authenticator is configured."""

    def __init__(self, authenticators: Mapping[str, Authenticator], anonymous: Credential | None,
                 authorizer: rules.Authorizer | None = None, provider: CredentialProvider | None = None,
                 guarded: bool = False) -> None:
        self.authenticators, self.anonymous, self.authorizer = authenticators, anonymous, authorizer
        self.provider, self.guarded = provider, guarded

    def connection(self, peer: str) -> Authentication:
        return Authentication(self.authenticators, self.anonymous, peer)

    def allows(self, principal: str, action: rules.Action, subject: str = "") -> bool:
        """May `principal` do this? Always, as long as no authorizer is configured."""
        return self.authorizer is None or self.authorizer.authorize(principal, action, subject)

    def broker_refusal(self, principal: str, action: rules.Action, subject: str = "") -> str:
        """Why a broker may not connect as a node or a proxy (`action`); empty = it may.

        Where an authenticator is configured, a good credential is not enough: an application has one, too. It has to be
        our own one, or somebody has to have said that it is one of a broker's.
        """
        if not self.allows(principal, action, subject):
            return "Connection not authorized"
        own = self.provider is not None and principal == self.provider.principal != ""
        if not self.guarded or own or self.authorizer is not None and rules.speaks_of(
                self.authorizer, principal, action, subject):
            return ""
        return (f"'{shown(principal)}' is not known as a broker: it is not whom this node presents itself as "
                f"(credentialProvider), and no rule of bmqtwist.authorization allows it {action.value}")

    @property
    def open_to_anybody(self) -> bool:
        """A client without any credential gets in."""
        return self.anonymous is not None and self.anonymous.mechanism.upper() == ANONYMOUS

    def start(self) -> None:
        """Start every authenticator; those already started are stopped again when one fails."""
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


Find = Callable[[str], Callable[..., object]]


def build_security(app: AppConfig, report: Report, sleep: Callable[[float], None], find: Find) -> Security:
    """Join up what appConfig says of authentication and authorization, or raise LocalError.

    `find` returns the class of a dotted name, or raises LocalError. Clients that present nothing pass where no
    authenticator is configured, as with the original; where one is, only if `anonymousCredential` says so.
    """
    known: dict[str, Authenticator] = {}
    for plugin in app.authentication.authenticators:
        made = _make_authenticator(plugin, sleep, find)
        mechanism = made.mechanism.upper()
        if mechanism in known:
            raise LocalError(f"Duplicate authenticator mechanism '{mechanism}' for plugin '{plugin.name}'. Each "
                             "mechanism can only have one active authenticator")
        if isinstance(made, BasicAuthenticator):
            _look_at_users(made, report)
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
        _open_by_hand(credential, known, report)
        if credential.mechanism.upper() not in known:
            raise LocalError(f"Anonymous credential mechanism '{credential.mechanism.upper()}' does not match any "
                             "configured authenticator")
    elif not known:
        known[ANONYMOUS] = AnonAuthenticator({})
    return Security(known, credential, _make_authorizer(app, report, find), _make_provider(app, find),
                    bool(app.authentication.authenticators))


def _open_by_hand(credential: Credential, known: dict[str, Authenticator], report: Report) -> None:
    """Clients that present nothing are let in beside those that authenticate: asked for, so done, and said."""
    if not known:
        return
    if credential.mechanism.upper() == ANONYMOUS:
        known.setdefault(ANONYMOUS, AnonAuthenticator({}))
    report.warn("#AUTHENTICATION anonymousCredential lets in clients that present nothing, although an authenticator is "
                "configured. Remove it to close the broker to them.")


def _look_at_users(basic: BasicAuthenticator, report: Report) -> None:
    if not basic.users:
        report.alarm("CREDENTIALS_MISSING", "No credentials found in configuration. Please double check if this is "
                                            "intended.")
    if basic.literal_users:
        report.warn("#AUTHENTICATION Passwords of %d user(s) are readable in the configuration: replace them by hashes "
                    "made with `bmq password`.", len(basic.literal_users))


def _make_authenticator(plugin: AuthenticatorConfig, sleep: Callable[[float], None], find: Find) -> Authenticator:
    settings = _settings(plugin)
    if plugin.name == "BasicAuthenticator":
        return BasicAuthenticator(settings)
    if plugin.name == "AnonAuthenticator":
        return AnonAuthenticator(settings)
    if plugin.name == "TestAuthenticator":
        return TestAuthenticator(settings, sleep)
    made = _find("Authenticator", plugin.name, find)(settings)
    mechanism, blocking = getattr(made, "mechanism", None), getattr(made, "blocking", None)
    methods = all(callable(getattr(made, name, None)) for name in ("start", "stop", "authenticate"))
    if not isinstance(mechanism, str) or not isinstance(blocking, bool) or not methods:
        raise LocalError(f"Authenticator plugin '{plugin.name}' needs the attributes mechanism (str) and blocking "
                         "(bool) and the methods start, stop and authenticate.")
    return made  # type: ignore[return-value]


def _make_provider(app: AppConfig, find: Find) -> CredentialProvider | None:
    plugin = app.authentication.credential_provider
    if plugin is None:
        return None
    if plugin.name == "BasicCredentialProvider":
        return BasicCredentialProvider(_settings(plugin))
    made = _find("Credential provider", plugin.name, find)(_settings(plugin))
    if not isinstance(getattr(made, "principal", None), str) or not callable(getattr(made, "credential", None)):
        raise LocalError(f"Credential provider plugin '{plugin.name}' needs the attribute principal (str) and the method "
                         "credential.")
    return made  # type: ignore[return-value]


def _make_authorizer(app: AppConfig, report: Report, find: Find) -> rules.Authorizer | None:
    plugin, table = app.authorization.authorizer, app.bmqtwist.authorization
    own = rules.RulesAuthorizer(table.rules, table.default, report) if table.rules or table.default == "deny" else None
    if plugin is None:
        return own
    chosen: rules.Authorizer
    if plugin.name == "DefaultAuthorizer":
        chosen = rules.DefaultAuthorizer(_settings(plugin), report)
    else:
        chosen = _find("Authorizer", plugin.name, find)(_settings(plugin), report)  # type: ignore[assignment]
        if not callable(getattr(chosen, "authorize", None)):
            raise LocalError(f"Authorizer plugin '{plugin.name}' needs the method authorize.")
    return chosen if own is None else rules.Both(own, chosen)


def _settings(plugin: AuthenticatorConfig) -> Settings:
    return {setting.key: setting.value.value for setting in plugin.settings}


def _find(kind: str, name: str, find: Find) -> Callable[..., object]:
    try:
        return find(name)
    except LocalError as error:
        raise LocalError(f"{kind} plugin '{name}' not found or could not be created: {error}") from None


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
