"""Authentication of connections, built-in authenticators, and invalid configurations."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bmqtwist.config.broker import (
    AnonymousCredential,
    AppConfig,
    AuthenticationConfig,
    AuthorizationRules,
    BmqtwistConfig,
    CredentialConfig,
    Disallow,
    RuleConfig,
    Setting,
    SettingValue,
)
from bmqtwist.config.broker import AuthenticatorConfig as PluginConfig
from bmqtwist.config.broker import Authorization as AuthorizationConfig
from bmqtwist.errors import Category, LocalError
from bmqtwist.link.authentication import (
    TABLE,
    Authenticate,
    Authentication,
    Close,
    Credential,
    Denied,
    Drop,
    Event,
    Granted,
    Outcome,
    Proceed,
    State,
    attempt,
)
from bmqtwist.report import ListReport
from bmqtwist.security.authenticators import (
    AnonAuthenticator,
    BasicAuthenticator,
    Security,
    TestAuthenticator,
    build_security,
)
from bmqtwist.security.authorization import Action
from bmqtwist.security.passwords import make_hash
from bmqtwist.wire.schema import AuthenticationResponse, Status


class Slow:
    """A blocking authenticator."""

    mechanism, blocking = "Slow", True

    def __init__(self, settings: object = None) -> None:
        self.started = self.stopped = 0

    def start(self) -> None:
        self.started += 1

    def stop(self) -> None:
        self.stopped += 1

    def authenticate(self, data: bytes, peer: str) -> Outcome:
        if data == b"crash":
            raise ZeroDivisionError
        return Granted(data.decode(), 10_000) if data else Denied("empty", -7)


def Plugin(name: str, settings: dict[str, bool | int | str] | None = None) -> PluginConfig:
    """A plug-in in the configuration."""
    def value(given: bool | int | str) -> SettingValue:
        if isinstance(given, bool):
            return SettingValue(bool_val=given)
        return SettingValue(int_val=given) if isinstance(given, int) else SettingValue(string_val=given)

    return PluginConfig(name=name, settings=tuple(Setting(key=key, value=value(given))
                                               for key, given in (settings or {}).items()))


def Anonymous(credential: Credential | None) -> AnonymousCredential:
    """The anonymous credential in the configuration; None = disallow."""
    if credential is None:
        return AnonymousCredential(disallow=Disallow())
    return AnonymousCredential(credential=CredentialConfig(mechanism=credential.mechanism,
                                                           identity=credential.identity.decode()))


def build(authenticators: list[PluginConfig] | None = None, anonymous: AnonymousCredential | None = None,
          authorizer: PluginConfig | None = None, report: ListReport | None = None,
          rules: AuthorizationRules | None = None) -> Security:
    def find(name: str) -> Callable[..., object]:
        if name != "tests.Slow":
            raise LocalError(f"no such class: {name}")
        return Slow

    app = AppConfig(authentication=AuthenticationConfig(authenticators=tuple(authenticators or ()),
                                                       anonymous_credential=anonymous),
                    authorization=AuthorizationConfig(authorizer=authorizer),
                    bmqtwist=BmqtwistConfig(authorization=rules or AuthorizationRules()))
    return build_security(app, report or ListReport(), lambda seconds: None, find)


def basic(disallow: bool = False) -> Authentication:
    plugins = [Plugin("BasicAuthenticator", {"alice": "wonder", "bob": "builder"})]
    return build(plugins, Anonymous(None) if disallow else None).connection("1.2.3.4:5")


def slow() -> Authentication:
    return build([Plugin("tests.Slow")]).connection("1.2.3.4:5")


def run(machine: Authentication, effects: list, now: float) -> list:  # type: ignore[type-arg]
    """Run the authenticator of an Authenticate effect, as the broker does."""
    (effect,) = effects
    assert isinstance(effect, Authenticate)
    return machine.done(effect.token, attempt(effect.authenticator, effect.data, effect.peer), now)


GOOD = [AuthenticationResponse(Status(), 600_000)]


def test_every_state_decides_about_every_event() -> None:
    """A missing cell could bypass the authentication."""
    assert set(TABLE) == set(State)
    for state in State:
        assert set(TABLE[state]) == set(Event), state


@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
@pytest.mark.parametrize("event", Event, ids=lambda event: event.name)
def test_no_cell_lets_a_client_proceed_without_a_grant(state: State, event: Event) -> None:
    """Proceed requires a granted credential in every sequence of events."""
    machine = Authentication({"SLOW": Slow()}, None)
    machine.state, machine._asked, machine._mechanism = state, "SLOW", "SLOW"
    machine._outcome = Granted("p") if event is Event.GRANTED else Denied("no")
    effects = machine._feed(event, 0.0)
    if Proceed() in effects:
        assert (state, event) in {(State.IMPLICIT, Event.GRANTED), (State.AUTHENTICATED, Event.IDENTITY)}
    if any(isinstance(effect, Close) for effect in effects):
        assert machine.state is State.CLOSED and machine.deadline is None


@pytest.mark.spec("broker", 234)
def test_basic_good_is_answered_with_a_lifetime_and_bad_is_refused_and_closed() -> None:
    """The Basic mechanism with a valid and an invalid password."""
    machine = basic()
    assert machine.request("BASIC", b"alice:wonder", 0.0) == GOOD
    assert machine.identity(0.1) == [Proceed()]
    assert machine.principal == "BASIC_USER-alice"
    for mechanism, data, code in (("BASIC", b"alice:blunder", -1), ("BASIC", b"carol:wonder", -1),
                                  ("BASIC", b"alice", -1), ("NOPE", b"", -2)):
        machine = basic()
        answer, close = machine.request(mechanism, data, 0.0)
        assert isinstance(answer, AuthenticationResponse) and isinstance(close, Close)
        assert (answer.status.category, answer.status.code, answer.lifetime_ms) == (Category.E_REFUSED, code, None)
        assert machine.identity(0.1) == []


def test_an_unknown_mechanism_is_refused_in_the_originals_words() -> None:
    """Captured from BlazingMQ."""
    answer, _ = basic().request("nope", b"", 0.0)
    assert answer == AuthenticationResponse(Status(
        Category.E_REFUSED, -2, "Authentication mechanism 'NOPE' not supported."))
    answer, _ = basic().request("a\nb", b"", 0.0)
    assert isinstance(answer, AuthenticationResponse) and "\n" not in answer.status.message


@pytest.mark.spec("broker", 235)
def test_ten_authentications_at_a_time_each_get_their_own_result() -> None:
    """Results arrive in any order."""
    machines = [slow() for _ in range(10)]
    running = [machine.request("SLOW", b"user%d" % i if i % 2 else b"", 0.0) for i, machine in enumerate(machines)]
    for i in reversed(range(10)):
        effects = run(machines[i], running[i], 1.0)
        if i % 2:
            assert effects == [AuthenticationResponse(Status(), 10_000)]
            assert machines[i].principal == f"user{i}"
        else:
            assert effects == [AuthenticationResponse(Status(Category.E_REFUSED, -7, "empty")),
                               Close("Authentication failed: empty")]


def test_with_an_authenticator_a_client_that_presents_nothing_is_refused_unless_the_configuration_says_so() -> None:
    """Anonymous access requires its own setting, and logs a warning."""
    plugins, report = [Plugin("BasicAuthenticator", {"alice": make_hash("wonder", bytes(16))})], ListReport()
    closed = build(plugins, report=report)
    (close,) = closed.connection("p").identity(0.0)
    assert isinstance(close, Close) and not closed.admits_anonymous and not report.lines
    opened = build(plugins, Anonymous(Credential("ANONYMOUS", b"")), report=report)
    assert opened.connection("p").identity(0.0) == [Proceed()] and opened.admits_anonymous
    [(severity, text)] = report.lines
    assert severity == "WARN" and "admits clients without credentials" in text


@pytest.mark.spec("broker", 236)
def test_a_client_that_presents_nothing_gets_the_anonymous_credential() -> None:
    """Accepted by default; closed without a response if anonymous access is disallowed or the credential is invalid."""
    machine = build().connection("p")
    assert machine.identity(0.0) == [Proceed()]
    assert machine.principal == "anonymous" and machine.deadline is None
    for anonymous, plugins in (
            (Anonymous(None), [Plugin("BasicAuthenticator", {"a": "b"})]),
            (Anonymous(Credential("ANONYMOUS", b"")), [Plugin("AnonAuthenticator", {"shouldPass": False})]),
            (Anonymous(Credential("basic", b"a:wrong")), [Plugin("BasicAuthenticator", {"a": "b"})])):
        (close,) = build(plugins, anonymous).connection("p").identity(0.0)
        assert isinstance(close, Close)


def test_an_anonymous_credential_of_another_mechanism_is_applied_and_never_expires() -> None:
    """The client cannot renew a credential that it did not send."""
    machine = build([Plugin("BasicAuthenticator", {"guest": "g"})], Anonymous(Credential("Basic", b"guest:g"))
                    ).connection("p")
    assert machine.identity(0.0) == [Proceed()]
    assert machine.principal == "BASIC_USER-guest"
    assert machine.tick(1e9) == []


@pytest.mark.spec("broker", 237)
def test_reauthentication_renews_for_the_same_user_only() -> None:
    """Same user: lifetime restarts. Other mechanism: closed silently. Other user, wrong password: error and close."""
    def serving() -> Authentication:
        machine = basic()
        machine.request("BASIC", b"alice:wonder", 0.0)
        machine.identity(0.0)
        return machine

    machine = serving()
    assert machine.request("basic", b"alice:wonder", 500.0) == GOOD
    assert machine.deadline == 1100.0
    (close,) = serving().request("ANONYMOUS", b"", 1.0)
    assert isinstance(close, Close)
    for data in (b"bob:builder", b"alice:wrong"):
        answer, close = serving().request("BASIC", data, 1.0)
        assert isinstance(answer, AuthenticationResponse)
        assert answer.status.category is Category.E_REFUSED and answer.status.code
        assert isinstance(close, Close)


def test_anonymous_reauthentication_after_an_explicit_one_is_answered_and_after_an_implicit_one_dropped() -> None:
    """Captured from BlazingMQ."""
    machine = build().connection("p")
    assert machine.request("ANONYMOUS", b"", 0.0) == [AuthenticationResponse()]
    assert machine.identity(0.0) == [Proceed()]
    assert machine.request("anonymous", b"", 1.0) == [AuthenticationResponse()]
    machine = build().connection("p")
    machine.identity(0.0)
    (drop,) = machine.request("ANONYMOUS", b"", 1.0)
    assert drop == Drop("Dropping Authentication event since authentication is in progress")
    assert machine.state is State.SERVING_IMPLICIT


def test_a_second_request_before_the_identity_closes() -> None:
    """Captured from BlazingMQ: the first is answered, the second closes the connection."""
    machine = build().connection("p")
    machine.request("ANONYMOUS", b"", 0.0)
    (close,) = machine.request("ANONYMOUS", b"", 0.0)
    assert isinstance(close, Close)


@pytest.mark.spec("broker", 238)
def test_a_lifetime_that_passes_without_reauthentication_closes() -> None:
    """A revoked credential must not remain in force."""
    machine = basic()
    machine.request("BASIC", b"alice:wonder", 0.0)
    machine.identity(0.0)
    assert machine.tick(599.9) == []
    assert machine.tick(600.0) == [Close("Reauthentication timeout")]
    assert machine.tick(700.0) == []


def test_a_slow_reauthentication_does_not_prolong_the_old_credential() -> None:
    """Otherwise a hanging authenticator would extend the lifetime."""
    machine = slow()
    run(machine, machine.request("slow", b"u", 0.0), 0.0)
    machine.identity(0.0)
    effects = machine.request("slow", b"u", 9.0)
    assert machine.tick(10.0) == [Close("Reauthentication timeout")]
    assert run(machine, effects, 10.5) == []


@pytest.mark.spec("broker", 239)
def test_mechanisms_are_compared_without_case() -> None:
    """Mechanisms of plug-ins included."""
    assert basic().request("bAsIc", b"bob:builder", 0.0) == GOOD
    assert isinstance(slow().request("sLOW", b"x", 0.0)[0], Authenticate)


@pytest.mark.spec("broker", 240)
@pytest.mark.parametrize(("plugins", "anonymous", "words"), [
    ([Plugin("BasicAuthenticator", {"a": "b"}), Plugin("BasicAuthenticator", {"c": "d"})], None, "Duplicate"),
    ([], Anonymous(Credential("BASIC", b"")), "does not match any"),
    ([Plugin("AnonAuthenticator")], None, "anonymous credential is not provided"),
    ([Plugin("NoSuchAuthenticator")], None, "not found or could not be created"),
    ([Plugin("BasicAuthenticator", {"a": 1})], None, "stringVal"),
    ([Plugin("BasicAuthenticator", {"a": "$scrypt$1"})], None, "hash"),
    ([Plugin("AnonAuthenticator", {"shouldPass": "yes"})], Anonymous(None), "boolVal"),
    ([Plugin("TestAuthenticator", {"sleepTimeMs": -1})], None, "sleepTimeMs")])
def test_an_inconsistent_configuration_does_not_start(plugins: list[PluginConfig], anonymous: AnonymousCredential | None,
                                                       words: str) -> None:
    """A guess could admit unauthenticated clients."""
    with pytest.raises(LocalError, match=words):
        build(plugins, anonymous)


def test_an_unknown_authorizer_does_not_start() -> None:
    """A misspelled name must not disable the authorization."""
    with pytest.raises(LocalError, match="not found"):
        build(authorizer=Plugin("TabelAuthorizer"))


@pytest.mark.spec("broker", 241)
def test_a_client_that_leaves_during_a_slow_authentication_leaves_nothing() -> None:
    """The late outcome is ignored."""
    machine = slow()
    effects = machine.request("slow", b"u", 0.0)
    machine.closed()
    assert run(machine, effects, 1.0) == []
    assert machine.state is State.CLOSED and machine.principal == ""


def test_a_second_request_while_one_runs_is_dropped_and_the_first_still_counts() -> None:
    """The client receives one response."""
    machine = slow()
    effects = machine.request("slow", b"u", 0.0)
    assert machine.holding
    (drop,) = machine.request("slow", b"v", 0.1)
    assert isinstance(drop, Drop)
    run(machine, effects, 0.2)
    assert machine.principal == "u" and not machine.holding


def test_an_authenticator_that_raises_or_answers_nonsense_has_denied() -> None:
    """An error in a plug-in must neither admit a client nor stop the broker."""
    outcome = attempt(Slow(), b"crash", "p")
    assert isinstance(outcome, Denied) and outcome.code and "ZeroDivisionError" in outcome.reason

    class Nonsense(Slow):
        def authenticate(self, data: bytes, peer: str) -> Outcome:
            return True  # type: ignore[return-value]

    assert isinstance(attempt(Nonsense(), b"", "p"), Denied)


def test_hashed_passwords_are_checked_off_the_thread_and_for_unknown_users_too() -> None:
    """The check of an unknown user takes as long as that of a known one."""
    authenticator = BasicAuthenticator({"alice": make_hash("wonder", bytes(16))})
    assert authenticator.blocking
    assert authenticator.authenticate(b"alice:wonder", "p") == Granted("BASIC_USER-alice", 600_000)
    assert isinstance(authenticator.authenticate(b"alice:x", "p"), Denied)
    assert isinstance(authenticator.authenticate(b"carol:nobody", "p"), Denied)
    assert not authenticator.literal_users


def test_an_unknown_user_with_an_empty_password_is_refused() -> None:
    """The placeholder hash for unknown users matches an empty password, but must not admit it."""
    assert isinstance(BasicAuthenticator({"a": "b"}).authenticate(b"x:", "p"), Denied)


def test_a_user_name_that_would_forge_a_log_line_is_refused() -> None:
    """User names are logged."""
    assert isinstance(BasicAuthenticator({"a": "b"}).authenticate(b"a\nALARM:b", "p"), Denied)


def test_readable_passwords_and_missing_credentials_are_reported() -> None:
    """Both are logged as warnings at the start."""
    report = ListReport()
    build([Plugin("BasicAuthenticator", {"a": "plain"})], report=report)
    assert "bmq password" in report.texts("WARN")[0]
    report = ListReport()
    build([Plugin("BasicAuthenticator")], report=report)
    assert report.texts("ALARM")[0].startswith("[CREDENTIALS_MISSING]")


def test_what_is_shown_to_other_brokers_is_checked_at_the_start() -> None:
    def shown(plugin: PluginConfig, find: Callable[[str], Callable[..., object]] = lambda name: dict) -> Security:
        app = AppConfig(authentication=AuthenticationConfig(credential_provider=plugin))
        return build_security(app, ListReport(), lambda seconds: None, find)

    provider = shown(Plugin("BasicCredentialProvider", {"username": "node", "password": "a:b"})).provider
    assert provider is not None and provider.credential() == Credential("BASIC", b"node:a:b")
    assert provider.principal == "BASIC_USER-node"
    for settings in ({}, {"username": "node"}, {"username": "a:b", "password": "x"}, {"username": "", "password": "x"},
                     {"username": "node", "password": make_hash("x", bytes(16))}):
        with pytest.raises(LocalError, match="BasicCredentialProvider"):
            shown(Plugin("BasicCredentialProvider", settings))  # type: ignore[arg-type]
    with pytest.raises(LocalError, match="needs the attribute principal"):
        shown(Plugin("my.Provider"))


def test_the_test_authenticator_waits_and_passes() -> None:
    """The configuration of BlazingMQ's own tests."""
    waited: list[float] = []
    authenticator = TestAuthenticator({"sleepTimeMs": 250}, waited.append)
    assert authenticator.blocking
    assert authenticator.authenticate(b"", "p") == Granted("TEST_USER", 600_000)
    assert waited == [0.25]
    assert not TestAuthenticator({}, waited.append).blocking


def test_authenticators_start_together_or_not_at_all() -> None:
    """A partially started set would leak threads and files."""
    class Broken(Slow):
        def start(self) -> None:
            raise LocalError("no directory server")

    first = Slow()
    with pytest.raises(LocalError):
        Security({"A": first, "B": Broken()}, None).start()
    assert (first.started, first.stopped) == (1, 1)


def test_nothing_is_authorized_unless_an_authorizer_is_configured() -> None:
    """Authorization is off by default, as in BlazingMQ."""
    report = ListReport()
    assert build(report=report).allows("x", Action.QUEUE_WRITE, "d")
    assert report.lines == []
    rules = AuthorizationRules(
        rules=(RuleConfig(principal="x", actions=("QueueRead",), domain="d", effect="allow"),), default="deny")
    strict = build(report=report, rules=rules)
    assert strict.allows("x", Action.QUEUE_READ, "d") and not strict.allows("x", Action.QUEUE_WRITE, "d")


def test_rules_count_beside_an_authorizer_as_well() -> None:
    """A configured default authorizer must not disable the rules."""
    rules = AuthorizationRules(default="deny")
    assert not build(authorizer=Plugin("DefaultAuthorizer"), rules=rules).allows("x", Action.CONNECT_CLIENT)


def test_a_broker_knows_whether_anybody_gets_in() -> None:
    """The warning at the start depends on it."""
    assert build().admits_anonymous
    assert not build([Plugin("BasicAuthenticator", {"a": "b"})], Anonymous(None)).admits_anonymous
    assert AnonAuthenticator({}).authenticate(b"", "p") == Granted("anonymous")
