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
    PluginSetting,
    PluginSettingValue,
    RuleConfig,
)
from bmqtwist.config.broker import AuthenticatorConfig as PluginConfig
from bmqtwist.config.broker import Authorization as AuthorizationConfig
from bmqtwist.errors import Category, LocalError
from bmqtwist.link.authentication import (
    TABLE,
    Authenticate,
    Authentication,
    AuthenticationEvent,
    AuthenticationState,
    CloseConnection,
    Credential,
    Denied,
    DropRequest,
    Granted,
    Outcome,
    Proceed,
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


class BlockingAuthenticator:
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


def plugin_config(name: str, settings: dict[str, bool | int | str] | None = None) -> PluginConfig:
    """A plug-in in the configuration."""
    def value(given: bool | int | str) -> PluginSettingValue:
        if isinstance(given, bool):
            return PluginSettingValue(bool_val=given)
        return PluginSettingValue(int_val=given) if isinstance(given, int) else PluginSettingValue(string_val=given)

    return PluginConfig(name=name, settings=tuple(PluginSetting(key=key, value=value(given))
                                               for key, given in (settings or {}).items()))


def anonymous_config(credential: Credential | None) -> AnonymousCredential:
    """The anonymous credential in the configuration; None = disallow."""
    if credential is None:
        return AnonymousCredential(disallow=Disallow())
    return AnonymousCredential(credential=CredentialConfig(mechanism=credential.mechanism,
                                                           identity=credential.identity.decode()))


def build_from(authenticators: list[PluginConfig] | None = None, anonymous: AnonymousCredential | None = None,
               authorizer: PluginConfig | None = None, report: ListReport | None = None,
               rules: AuthorizationRules | None = None) -> Security:
    def find(name: str) -> Callable[..., object]:
        if name != "tests.Slow":
            raise LocalError(f"no such class: {name}")
        return BlockingAuthenticator

    app = AppConfig(authentication=AuthenticationConfig(authenticators=tuple(authenticators or ()),
                                                       anonymous_credential=anonymous),
                    authorization=AuthorizationConfig(authorizer=authorizer),
                    bmqtwist=BmqtwistConfig(authorization=rules or AuthorizationRules()))
    return build_security(app, report or ListReport(), lambda seconds: None, find, lambda: 0.0)


def basic_authentication(disallow: bool = False) -> Authentication:
    plugins = [plugin_config("BasicAuthenticator", {"alice": "wonder", "bob": "builder"})]
    return build_from(plugins, anonymous_config(None) if disallow else None).new_authentication("1.2.3.4:5")


def blocking_authentication() -> Authentication:
    return build_from([plugin_config("tests.Slow")]).new_authentication("1.2.3.4:5")


def run_authenticator(machine: Authentication, effects: list, now: float) -> list:  # type: ignore[type-arg]
    """Run the authenticator of an Authenticate effect, as the broker does."""
    (effect,) = effects
    assert isinstance(effect, Authenticate)
    return machine.on_outcome(effect.token, attempt(effect.authenticator, effect.data, effect.peer), now)


GOOD = [AuthenticationResponse(Status(), 600_000)]


def test_the_table_has_an_action_for_every_state_and_event() -> None:
    """A missing cell could bypass the authentication."""
    assert set(TABLE) == set(AuthenticationState)
    for state in AuthenticationState:
        assert set(TABLE[state]) == set(AuthenticationEvent), state


@pytest.mark.parametrize("state", AuthenticationState, ids=lambda state: state.name)
@pytest.mark.parametrize("event", AuthenticationEvent, ids=lambda event: event.name)
def test_no_transition_lets_a_client_proceed_without_a_granted_credential(
        state: AuthenticationState, event: AuthenticationEvent) -> None:
    """Proceed requires a granted credential in every sequence of events."""
    machine = Authentication({"SLOW": BlockingAuthenticator()}, None)
    machine.state, machine._requested_mechanism, machine._mechanism = state, "SLOW", "SLOW"
    machine._outcome = Granted("p") if event is AuthenticationEvent.GRANTED else Denied("no")
    effects = machine._dispatch(event, 0.0)
    if Proceed() in effects:
        assert (state, event) in {
            (AuthenticationState.AUTHENTICATING_ANONYMOUS, AuthenticationEvent.GRANTED),
            (AuthenticationState.AUTHENTICATED, AuthenticationEvent.IDENTITY)}
    if any(isinstance(effect, CloseConnection) for effect in effects):
        assert machine.state is AuthenticationState.CLOSED and machine.deadline is None


@pytest.mark.spec("broker", 234)
def test_a_valid_basic_credential_gets_a_lifetime_and_an_invalid_one_is_refused() -> None:
    """The Basic mechanism with a valid and an invalid password."""
    machine = basic_authentication()
    assert machine.on_request("BASIC", b"alice:wonder", 0.0) == GOOD
    assert machine.on_identity(0.1) == [Proceed()]
    assert machine.principal == "BASIC_USER-alice"
    for mechanism, data, code in (("BASIC", b"alice:blunder", -1), ("BASIC", b"carol:wonder", -1),
                                  ("BASIC", b"alice", -1), ("NOPE", b"", -2)):
        machine = basic_authentication()
        answer, close = machine.on_request(mechanism, data, 0.0)
        assert isinstance(answer, AuthenticationResponse) and isinstance(close, CloseConnection)
        assert (answer.status.category, answer.status.code, answer.lifetime_ms) == (Category.E_REFUSED, code, None)
        assert machine.on_identity(0.1) == []


def test_an_unknown_mechanism_is_refused_with_the_text_of_the_original() -> None:
    """Captured from BlazingMQ."""
    answer, _ = basic_authentication().on_request("nope", b"", 0.0)
    assert answer == AuthenticationResponse(Status(
        Category.E_REFUSED, -2, "Authentication mechanism 'NOPE' not supported."))
    answer, _ = basic_authentication().on_request("a\nb", b"", 0.0)
    assert isinstance(answer, AuthenticationResponse) and "\n" not in answer.status.message


@pytest.mark.spec("broker", 235)
def test_concurrent_authentications_each_receive_their_own_result() -> None:
    """Results arrive in any order."""
    machines = [blocking_authentication() for _ in range(10)]
    running = [machine.on_request("SLOW", b"user%d" % i if i % 2 else b"", 0.0) for i, machine in enumerate(machines)]
    for i in reversed(range(10)):
        effects = run_authenticator(machines[i], running[i], 1.0)
        if i % 2:
            assert effects == [AuthenticationResponse(Status(), 10_000)]
            assert machines[i].principal == f"user{i}"
        else:
            assert effects == [AuthenticationResponse(Status(Category.E_REFUSED, -7, "empty")),
                               CloseConnection("Authentication failed: empty")]


def test_with_an_authenticator_clients_without_credential_need_an_anonymous_setting() -> None:
    """Anonymous access requires its own setting, and logs a warning."""
    plugins, report = [plugin_config("BasicAuthenticator", {"alice": make_hash("wonder", bytes(16))})], ListReport()
    rules = AuthorizationRules(default="deny")
    closed = build_from(plugins, report=report, rules=rules)
    (close,) = closed.new_authentication("p").on_identity(0.0)
    assert isinstance(close, CloseConnection) and not closed.open_principals and not report.lines
    opened = build_from(plugins, anonymous_config(Credential("ANONYMOUS", b"")), report=report, rules=rules)
    assert opened.new_authentication("p").on_identity(0.0) == [Proceed()] and opened.open_principals == ["anonymous"]
    [(severity, text)] = report.lines
    assert severity == "WARN" and "admits clients without credentials" in text


@pytest.mark.spec("broker", 236)
def test_a_client_without_credential_gets_the_anonymous_credential() -> None:
    """Accepted by default; closed without a response if anonymous access is disallowed or the credential is invalid."""
    machine = build_from().new_authentication("p")
    assert machine.on_identity(0.0) == [Proceed()]
    assert machine.principal == "anonymous" and machine.deadline is None
    for anonymous, plugins in (
            (anonymous_config(None), [plugin_config("BasicAuthenticator", {"a": "b"})]),
            (anonymous_config(Credential("ANONYMOUS", b"")), [plugin_config("AnonAuthenticator", {"shouldPass": False})]),
            (anonymous_config(Credential("basic", b"a:wrong")), [plugin_config("BasicAuthenticator", {"a": "b"})])):
        (close,) = build_from(plugins, anonymous).new_authentication("p").on_identity(0.0)
        assert isinstance(close, CloseConnection)


def test_an_anonymous_credential_of_another_mechanism_does_not_expire() -> None:
    """The client cannot renew a credential that it did not send."""
    anonymous = anonymous_config(Credential("Basic", b"guest:g"))
    machine = build_from([plugin_config("BasicAuthenticator", {"guest": "g"})], anonymous).new_authentication("p")
    assert machine.on_identity(0.0) == [Proceed()]
    assert machine.principal == "BASIC_USER-guest"
    assert machine.tick(1e9) == []


@pytest.mark.spec("broker", 237)
def test_reauthentication_renews_for_the_same_user_only() -> None:
    """Same user: lifetime restarts. Other mechanism: closed silently. Other user, wrong password: error and close."""
    def serving_client() -> Authentication:
        machine = basic_authentication()
        machine.on_request("BASIC", b"alice:wonder", 0.0)
        machine.on_identity(0.0)
        return machine

    machine = serving_client()
    assert machine.on_request("basic", b"alice:wonder", 500.0) == GOOD
    assert machine.deadline == 1100.0
    (close,) = serving_client().on_request("ANONYMOUS", b"", 1.0)
    assert isinstance(close, CloseConnection)
    for data in (b"bob:builder", b"alice:wrong"):
        answer, close = serving_client().on_request("BASIC", data, 1.0)
        assert isinstance(answer, AuthenticationResponse)
        assert answer.status.category is Category.E_REFUSED and answer.status.code
        assert isinstance(close, CloseConnection)


def test_anonymous_reauthentication_is_answered_only_after_an_explicit_authentication() -> None:
    """Captured from BlazingMQ."""
    machine = build_from().new_authentication("p")
    assert machine.on_request("ANONYMOUS", b"", 0.0) == [AuthenticationResponse()]
    assert machine.on_identity(0.0) == [Proceed()]
    assert machine.on_request("anonymous", b"", 1.0) == [AuthenticationResponse()]
    machine = build_from().new_authentication("p")
    machine.on_identity(0.0)
    (drop,) = machine.on_request("ANONYMOUS", b"", 1.0)
    assert drop == DropRequest("Dropping Authentication event since authentication is in progress")
    assert machine.state is AuthenticationState.NEGOTIATED_ANONYMOUS


def test_a_second_authentication_request_before_the_identity_closes_the_connection() -> None:
    """Captured from BlazingMQ: the first is answered, the second closes the connection."""
    machine = build_from().new_authentication("p")
    machine.on_request("ANONYMOUS", b"", 0.0)
    (close,) = machine.on_request("ANONYMOUS", b"", 0.0)
    assert isinstance(close, CloseConnection)


@pytest.mark.spec("broker", 238)
def test_a_connection_closes_at_the_end_of_its_credential_lifetime() -> None:
    """A revoked credential must not remain in force."""
    machine = basic_authentication()
    machine.on_request("BASIC", b"alice:wonder", 0.0)
    machine.on_identity(0.0)
    assert machine.tick(599.9) == []
    assert machine.tick(600.0) == [CloseConnection("Reauthentication timeout")]
    assert machine.tick(700.0) == []


def test_a_pending_reauthentication_does_not_extend_the_old_lifetime() -> None:
    """Otherwise a hanging authenticator would extend the lifetime."""
    machine = blocking_authentication()
    run_authenticator(machine, machine.on_request("slow", b"u", 0.0), 0.0)
    machine.on_identity(0.0)
    effects = machine.on_request("slow", b"u", 9.0)
    assert machine.tick(10.0) == [CloseConnection("Reauthentication timeout")]
    assert run_authenticator(machine, effects, 10.5) == []


@pytest.mark.spec("broker", 239)
def test_mechanism_names_are_case_insensitive() -> None:
    """Mechanisms of plug-ins included."""
    assert basic_authentication().on_request("bAsIc", b"bob:builder", 0.0) == GOOD
    assert isinstance(blocking_authentication().on_request("sLOW", b"x", 0.0)[0], Authenticate)


@pytest.mark.spec("broker", 240)
@pytest.mark.parametrize(("plugins", "anonymous", "words"), [
    ([plugin_config("BasicAuthenticator", {"a": "b"}), plugin_config("BasicAuthenticator", {"c": "d"})], None, "Duplicate"),
    ([], anonymous_config(Credential("BASIC", b"")), "does not match any"),
    ([plugin_config("AnonAuthenticator")], None, "anonymous credential is not provided"),
    ([plugin_config("NoSuchAuthenticator")], None, "not found or could not be created"),
    ([plugin_config("BasicAuthenticator", {"a": 1})], None, "stringVal"),
    ([plugin_config("BasicAuthenticator", {"a": "$scrypt$1"})], None, "hash"),
    ([plugin_config("AnonAuthenticator", {"shouldPass": "yes"})], anonymous_config(None), "boolVal"),
    ([plugin_config("TestAuthenticator", {"sleepTimeMs": -1})], None, "sleepTimeMs")])
def test_an_inconsistent_authentication_configuration_fails_the_start(plugins: list[PluginConfig],
                                                                      anonymous: AnonymousCredential | None,
                                                                      words: str) -> None:
    """A guess could admit unauthenticated clients."""
    with pytest.raises(LocalError, match=words):
        build_from(plugins, anonymous)


def test_an_unknown_authorizer_fails_the_start() -> None:
    """A misspelled name must not disable the authorization."""
    with pytest.raises(LocalError, match="not found"):
        build_from(authorizer=plugin_config("TabelAuthorizer"))


@pytest.mark.spec("broker", 241)
def test_the_result_of_an_authentication_is_ignored_after_a_disconnect() -> None:
    """The late outcome is ignored."""
    machine = blocking_authentication()
    effects = machine.on_request("slow", b"u", 0.0)
    machine.close()
    assert run_authenticator(machine, effects, 1.0) == []
    assert machine.state is AuthenticationState.CLOSED and machine.principal == ""


def test_an_authentication_request_during_another_one_is_dropped() -> None:
    """The client receives one response."""
    machine = blocking_authentication()
    effects = machine.on_request("slow", b"u", 0.0)
    assert machine.defers_frames
    (drop,) = machine.on_request("slow", b"v", 0.1)
    assert isinstance(drop, DropRequest)
    run_authenticator(machine, effects, 0.2)
    assert machine.principal == "u" and not machine.defers_frames


def test_an_authenticator_that_raises_or_returns_an_invalid_result_denies() -> None:
    """An error in a plug-in must neither admit a client nor stop the broker."""
    outcome = attempt(BlockingAuthenticator(), b"crash", "p")
    assert isinstance(outcome, Denied) and outcome.code and "ZeroDivisionError" in outcome.reason

    class InvalidAuthenticator(BlockingAuthenticator):
        def authenticate(self, data: bytes, peer: str) -> Outcome:
            return True  # type: ignore[return-value]

    assert isinstance(attempt(InvalidAuthenticator(), b"", "p"), Denied)


def test_hashed_passwords_are_checked_in_a_thread_also_for_unknown_users() -> None:
    """The check of an unknown user takes as long as that of a known one."""
    authenticator = BasicAuthenticator({"alice": make_hash("wonder", bytes(16))}, lambda: 0.0)
    assert authenticator.blocking
    assert authenticator.authenticate(b"alice:wonder", "p") == Granted("BASIC_USER-alice", 600_000)
    assert isinstance(authenticator.authenticate(b"alice:x", "p"), Denied)
    assert isinstance(authenticator.authenticate(b"carol:secret", "p"), Denied)
    assert not authenticator.literal_users


def test_an_unknown_user_with_an_empty_password_is_refused() -> None:
    """The placeholder hash for unknown users matches an empty password, but must not admit it."""
    assert isinstance(BasicAuthenticator({"a": "b"}, lambda: 0.0).authenticate(b"x:", "p"), Denied)


def test_a_user_name_that_would_forge_a_log_line_is_refused() -> None:
    """User names are logged."""
    assert isinstance(BasicAuthenticator({"a": "b"}, lambda: 0.0).authenticate(b"a\nALARM:b", "p"), Denied)


def test_plain_text_passwords_and_missing_credentials_are_logged() -> None:
    """Both are logged as warnings at the start."""
    report = ListReport()
    build_from([plugin_config("BasicAuthenticator", {"a": "plain"})], report=report)
    assert "bmq password" in report.texts("WARN")[0]
    report = ListReport()
    build_from([plugin_config("BasicAuthenticator")], report=report)
    assert report.texts("ALARM")[0].startswith("[CREDENTIALS_MISSING]")


def test_the_credential_for_other_brokers_is_validated_at_the_start() -> None:
    def with_provider(plugin: PluginConfig, find: Callable[[str], Callable[..., object]] = lambda name: dict) -> Security:
        app = AppConfig(authentication=AuthenticationConfig(credential_provider=plugin))
        return build_security(app, ListReport(), lambda seconds: None, find, lambda: 0.0)

    provider = with_provider(plugin_config("BasicCredentialProvider", {"username": "node", "password": "a:b"})).provider
    assert provider is not None and provider.credential() == Credential("BASIC", b"node:a:b")
    assert provider.principal == "BASIC_USER-node"
    for settings in ({}, {"username": "node"}, {"username": "a:b", "password": "x"}, {"username": "", "password": "x"},
                     {"username": "node", "password": make_hash("x", bytes(16))}):
        with pytest.raises(LocalError, match="BasicCredentialProvider"):
            with_provider(plugin_config("BasicCredentialProvider", settings))  # type: ignore[arg-type]
    with pytest.raises(LocalError, match="needs the attribute principal"):
        with_provider(plugin_config("my.Provider"))


def test_the_test_authenticator_sleeps_and_grants() -> None:
    """The configuration of BlazingMQ's own tests."""
    waited: list[float] = []
    authenticator = TestAuthenticator({"sleepTimeMs": 250}, waited.append)
    assert authenticator.blocking
    assert authenticator.authenticate(b"", "p") == Granted("TEST_USER", 600_000)
    assert waited == [0.25]
    assert not TestAuthenticator({}, waited.append).blocking


def test_started_authenticators_are_stopped_if_another_one_fails_to_start() -> None:
    """A partially started set would leak threads and files."""
    class FailingAuthenticator(BlockingAuthenticator):
        def start(self) -> None:
            raise LocalError("no directory server")

    first = BlockingAuthenticator()
    with pytest.raises(LocalError):
        Security({"A": first, "B": FailingAuthenticator()}, None).start()
    assert (first.started, first.stopped) == (1, 1)


def test_all_actions_are_allowed_unless_an_authorizer_is_configured() -> None:
    """Authorization is off by default, as in BlazingMQ."""
    report = ListReport()
    assert build_from(report=report).allows("x", Action.QUEUE_WRITE, "d")
    assert report.lines == []
    rules = AuthorizationRules(
        rules=(RuleConfig(principal="x", actions=("QueueRead",), domain="d", effect="allow"),), default="deny")
    strict = build_from(report=report, rules=rules)
    assert strict.allows("x", Action.QUEUE_READ, "d") and not strict.allows("x", Action.QUEUE_WRITE, "d")


def test_authorization_rules_apply_in_addition_to_an_authorizer() -> None:
    """A configured default authorizer must not disable the rules."""
    rules = AuthorizationRules(default="deny")
    assert not build_from(authorizer=plugin_config("DefaultAuthorizer"), rules=rules).allows("x", Action.CONNECT_CLIENT)


def test_the_principals_that_need_no_secret_are_known() -> None:
    """What is open without a credential depends on them."""
    basic = plugin_config("BasicAuthenticator", {"a": "b"})
    assert build_from().open_principals == build_from(anonymous=anonymous_config(None)).open_principals == ["anonymous"]
    assert build_from([basic], anonymous_config(None)).open_principals == []
    assert build_from([basic], anonymous_config(Credential("ANONYMOUS", b""))).open_principals == ["anonymous"]
    assert build_from([basic], anonymous_config(Credential("basic", b"a:b"))).open_principals == ["BASIC_USER-a"]
    assert build_from([plugin_config("TestAuthenticator")]).open_principals == ["TEST_USER"]
    refusing = plugin_config("AnonAuthenticator", {"shouldPass": False})
    assert build_from([refusing], anonymous_config(Credential("ANONYMOUS", b""))).open_principals == []
    assert AnonAuthenticator({}).authenticate(b"", "p") == Granted("anonymous")
