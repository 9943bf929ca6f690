"""Composition of the configuration at the start: overrides, rules, own nodes, listeners."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from OpenSSL import crypto

from bmqtwist.config import broker as config
from bmqtwist.config.clusters import ClusterNode, Clusters, Tcp, Transport, parse_endpoint
from bmqtwist.config.compose import NO_OVERRIDES, Overrides, compose, endpoint_address, overrides_from
from bmqtwist.config.declare import ConfigError, decode_text
from bmqtwist.config.load import load, local_host_names
from bmqtwist.daemon.preflight import check, find_class
from bmqtwist.errors import LocalError

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1", "ourhost"})


def app(listeners=(), port=30114, tcp=True, **members):
    """An appConfig with a TCP interface."""
    interface = config.TcpInterface(port=port, listeners=tuple(listeners)) if tcp else None
    return config.AppConfig(network_interfaces=config.NetworkInterfaces(tcp_interface=interface), **members)


def cluster(*endpoints, name="c", names=()):
    """Return a cluster of nodes 1, 2, ... with these endpoints, by default named n1, n2, ..."""
    nodes = [{"id": i, "name": names[i - 1] if names else f"n{i}", "transport": {"tcp": {"endpoint": endpoint}}}
             for i, endpoint in enumerate(endpoints, 1)]
    return {"name": name, "nodes": nodes, "partitionConfig": {
        "numPartitions": 1, "location": "s", "archiveLocation": "a", "maxDataFileSize": 1, "maxJournalFileSize": 1}}


def compose_from(app_config, *clusters, overrides=NO_OVERRIDES, virtual=(), notices=None):
    """Call compose() with clusters as JSON data."""
    known = decode_text(Clusters, json.dumps({"myClusters": clusters, "myVirtualClusters": virtual}), "c", [])
    return compose("etc", config.BrokerConfig(app_config=app_config), known, overrides, LOCAL_NAMES,
                   [] if notices is None else notices)


def refusal(*args, **kwargs):
    with pytest.raises(ConfigError) as caught:
        compose_from(*args, **kwargs)
    return str(caught.value)


# --------------------------------------------------------------------------------------------------------- overrides
def test_command_line_overrides_environment_and_environment_overrides_files():
    merged = overrides_from({"BMQ_HOST_NAME": "env", "BMQ_PORT": "31000", "BMQ_DURABILITY": "none", "BMQ_INSTANCE_ID": "",
                             "OTHER": "x"}, Overrides(host_name="cli", host_tags="t", host_data_center="d"), [], [])
    result = compose_from(app(host_name="file", broker_instance_name="kept"), overrides=merged)
    assert (result.app.host_name, result.app.host_tags, result.app.host_data_center) == ("cli", "t", "d")
    assert result.app.broker_instance_name == "kept"
    assert result.extension.durability == "none"
    assert [listener.port for listener in result.listeners] == [31000]


@pytest.mark.parametrize("variable, value, words", [
    ("BMQ_PORT", "x", 'found "x", expected a port'), ("BMQ_PORT", "65536", "expected a port"),
    ("BMQ_PORT", "-1", "expected a port"), ("BMQ_HTTP_PORT", "٣", "expected a port"),
    ("BMQ_DURABILITY", "sometimes", 'expected one of "none", "group", "always"')])
def test_an_invalid_environment_variable_is_refused_with_its_name(tmp_path, variable, value, words):
    with pytest.raises(ConfigError) as caught:
        load(str(tmp_path), environment={variable: value})
    assert f"environment: {variable}: " in str(caught.value) and words in str(caught.value)


def test_a_variable_that_kubernetes_sets_for_a_service_is_ignored_with_a_notice():
    problems, notices = [], []
    environment = {"BMQ_PORT": "tcp://10.0.0.1:30114", "BMQ_HTTP_PORT": "udp://10.0.0.1:80"}
    found = overrides_from(environment, NO_OVERRIDES, problems, notices)
    assert found == NO_OVERRIDES and problems == []
    assert [notice.path for notice in notices] == ["BMQ_PORT", "BMQ_HTTP_PORT"] and "enableServiceLinks" in notices[0].text


def test_an_invalid_variable_has_no_effect_if_the_command_line_has_the_value():
    problems = []
    assert overrides_from({"BMQ_PORT": "x"}, Overrides(port=5), problems, []).port == 5 and problems == []


def test_a_node_may_be_dialled_at_another_address_than_its_endpoint():
    nodes = cluster("tcp://localhost:1", "tcp://far:2")
    nodes["nodes"][1]["transport"]["tcp"]["dial"] = "tcp://relay:3"
    far = compose_from(app(), nodes).clusters.my_clusters[0].nodes[1]
    assert (far.endpoint, far.dialled) == ("tcp://far:2", ("relay", 3))
    nodes["nodes"][1]["transport"]["tcp"]["dial"] = "relay"
    assert "nodes[1].transport.tcp.dial: found \"relay\", expected" in refusal(app(), nodes)


def test_the_port_option_applies_to_a_single_listener():
    listener = config.Listener(name="a", address="10.0.0.1", port=1)
    result = compose_from(app([listener]), overrides=Overrides(port=5))
    assert [(each.address, each.port) for each in result.listeners] == [("10.0.0.1", 5)]


def test_the_port_option_without_a_single_listener_causes_a_warning():
    notices = []
    two = [config.Listener(name="a", port=1), config.Listener(name="b", port=2)]
    assert [each.port for each in compose_from(app(two), overrides=Overrides(port=5), notices=notices).listeners] == [1, 2]
    assert compose_from(app(tcp=False), overrides=Overrides(port=5), notices=notices).listeners == ()
    assert len(notices) == 2 and all("has no effect" in notice.text for notice in notices)


def test_environment_variables_override_address_and_port_of_the_console():
    result = compose_from(app(), overrides=overrides_from({"BMQ_HTTP_PORT": "8080", "BMQ_HTTP_ADDRESS": "::1"},
                                                             NO_OVERRIDES, [], []))
    assert (result.extension.http.address, result.extension.http.port) == ("::1", 8080)


def test_the_deprecated_port_member_has_the_port_of_the_first_listener():
    result = compose_from(app([config.Listener(name="a", port=7)], port=0))
    assert result.app.network_interfaces.tcp_interface.port == 7


# --------------------------------------------------------------------------------------------------------- listening
def test_without_a_configured_address_listeners_use_loopback():
    assert compose_from(app(port=1)).listeners == (
        config.BoundListener(name="TCPInterface", address="127.0.0.1", port=1, tls=False),)
    result = compose_from(app([config.Listener(name="a", port=1)]), cluster("tcp://localhost:1"))
    assert [each.address for each in result.listeners] == ["127.0.0.1"]


def test_the_listener_address_overrides_the_option_and_the_option_overrides_the_endpoint():
    listeners = [config.Listener(name="a", address="0.0.0.0", port=1), config.Listener(name="b", port=2)]
    result = compose_from(app(listeners), cluster("tcp://ourhost:1"), overrides=Overrides(listen_address="10.1.1.1"))
    assert [each.address for each in result.listeners] == ["0.0.0.0", "10.1.1.1"]
    result = compose_from(app(listeners), cluster("tcp://ourhost:1"))
    assert [each.address for each in result.listeners] == ["0.0.0.0", "::"]


def test_the_port_option_does_not_change_the_listen_address():
    result = compose_from(app([config.Listener(name="a", port=1)]), cluster("tcp://localhost:1"),
                          overrides=Overrides(port=9, host_name="otherhost"))
    assert [each.address for each in result.listeners] == ["127.0.0.1"]


@pytest.mark.parametrize("endpoints, address", [
    ([], "127.0.0.1"), (["tcp://localhost:1"], "127.0.0.1"), (["tcp://127.0.0.1:1"], "127.0.0.1"),
    (["tcp://127.0.0.2:1"], "127.0.0.2"), (["tcp://[::1]:1"], "::1"), (["tcp://10.0.0.5:1"], "10.0.0.5"),
    (["tcp://somehost:1"], "::"), (["tcp://10.0.0.5:1", "tcp://10.0.0.6:1"], "::"),
    (["tcp://10.0.0.5:1", "tcp://localhost:1"], "10.0.0.5"), (["tcp://LOCALHOST:1"], "127.0.0.1")])
def test_the_endpoint_of_the_own_node_determines_the_listen_address(endpoints, address):
    nodes = [ClusterNode(id=i, name="n", transport=_transport(endpoint))
             for i, endpoint in enumerate(endpoints)]
    assert endpoint_address(nodes) == address


def _transport(endpoint):
    return Transport(tcp=Tcp(endpoint=endpoint))


def test_without_a_tcp_interface_there_are_no_listeners():
    assert compose_from(app(tcp=False)).listeners == ()


@pytest.mark.parametrize("text, parts", [
    ("tcp://h:1", ("h", 1)), ("tcp://[fe80::1]:65535", ("fe80::1", 65535)), ("tcp://h:65536", None), ("h:1", None),
    ("tcp://h", None), ("tcp://:1", None), ("tcp://h:1/", None), ("udp://h:1", None)])
def test_endpoints_are_parsed_into_their_parts(text, parts):
    assert parse_endpoint(text) == parts


# ---------------------------------------------------------------------------------------------------------- our node
def test_the_own_node_is_found_by_local_endpoint_and_listening_port():
    three = cluster("tcp://localhost:1", "tcp://localhost:2", "tcp://localhost:3")
    assert compose_from(app(port=2), three).self_nodes == {"c": 2}
    hosts = cluster("tcp://a:1", "tcp://ourhost:1", "tcp://b:1")
    assert compose_from(app(port=1), hosts).self_nodes == {"c": 2}


def test_the_configured_host_name_is_a_local_name():
    assert compose_from(app(port=1, host_name="b"), cluster("tcp://a:1", "tcp://b:1")).self_nodes == {"c": 2}


def test_a_virtual_cluster_determines_the_own_node():
    three = cluster("tcp://localhost:1", "tcp://x:1")
    assert compose_from(app(port=1), three, virtual=[{"name": "c", "selfNodeId": 2}]).self_nodes == {"c": 2}


def test_the_own_node_is_found_by_node_name_or_a_single_local_endpoint():
    assert compose_from(app(port=9, host_name="east2"), cluster("tcp://x:1", "tcp://y:1", names=["east1", "east2"])
                        ).self_nodes == {"c": 2}
    assert compose_from(app(port=0), cluster("tcp://localhost:1", "tcp://y:1")).self_nodes == {"c": 1}


def test_a_cluster_without_the_own_node_is_refused_with_advice():
    text = refusal(app(port=9), cluster("tcp://a:1", "tcp://b:1"))
    assert "tcp://a:1, tcp://b:1; none belongs to this broker" in text and "ports: 9" in text and "myVirtualClusters" in text
    assert "none belongs to this broker" in refusal(app(port=9), cluster("tcp://localhost:1", "tcp://localhost:2"))


def test_local_host_names_are_determined_without_a_name_service(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "Node7.Example.Org")
    assert local_host_names() == {"node7.example.org", "node7", "localhost", "127.0.0.1", "::1"}


# ------------------------------------------------------------------------------------------------------------- rules
def stats(snapshot=1, printing=60, *plugins):
    return config.Stats(snapshot_interval=snapshot, plugins=tuple(plugins),
                        printer=config.StatsPrinter(print_interval=printing))


@pytest.mark.spec("broker", 3)
def test_a_print_interval_must_be_a_multiple_of_the_snapshot_interval():
    assert "printInterval: found 60, expected a multiple of snapshotInterval (7)" in refusal(app(stats=stats(7, 60)))
    assert compose_from(app(stats=stats(7, 63)))
    assert compose_from(app(stats=stats(7, 0))) and compose_from(app(stats=stats(0, 60)))


@pytest.mark.spec("broker", 4)
def test_a_publish_interval_above_the_print_interval_is_refused():
    plugin = config.StatPlugin(name="PrometheusStatConsumer", publish_interval=90)
    text = refusal(app(stats=stats(1, 60, plugin)))
    assert "plugins[0].publishInterval: found 90, expected at most printInterval (60)" in text
    assert compose_from(app(stats=stats(1, 60, replace(plugin, publish_interval=60))))
    assert "expected a multiple of snapshotInterval (4)" in refusal(
        app(stats=stats(4, 60, replace(plugin, publish_interval=30))))


def test_unknown_plugin_names_are_refused_unless_they_are_dotted():
    assert 'stats.plugins[0].name: found "", expected one of "PrometheusStatConsumer"' in refusal(
        app(stats=stats(1, 60, config.StatPlugin())))
    assert 'plugins.enabled[1]: found "Nonsense"' in refusal(
        app(plugins=config.Plugins(enabled=("BasicAuthenticator", "Nonsense"))))
    assert compose_from(app(plugins=config.Plugins(enabled=("my.package.Authenticator",))))


def test_a_tls_listener_requires_a_certificate():
    listener = config.Listener(name="a", port=1, tls=True)
    assert "listeners[0].tls: is true, but there is no appConfig.tlsConfig" in refusal(app([listener]))
    result = compose_from(app([listener], tls_config=config.TlsConfig(certificate="c", key="k")))
    assert result.listeners[0].tls and result.app.tls_config.versions == "TLSv1.3"


def test_tls_endpoints_must_match_the_listener_and_require_a_certificate_authority():
    listener, secret = config.Listener(name="a", port=30114, tls=True), {"certificate": "c", "key": "k"}
    trusting = config.TlsConfig(**secret, certificate_authority="ca")
    both = ("tls://localhost:30114", "tls://otherhost:30114")
    text = refusal(app([listener], tls_config=config.TlsConfig(**secret)), cluster(*both))
    assert 'myClusters[0].nodes[1].transport.tcp.endpoint: found "tls://otherhost:30114", but appConfig.tlsConfig' in text
    assert compose_from(app([listener], tls_config=trusting), cluster(*both)).clusters.my_clusters[0].nodes[1].tls
    assert 'expected "tls://...": the listener \'a\' at that port has tls true' in refusal(
        app([listener], tls_config=trusting), cluster(*PAIR))
    assert 'expected "tcp://...": the listener \'a\' at that port has tls false' in refusal(
        app([replace(listener, tls=False)], tls_config=trusting), cluster(*both))
    assert compose_from(app([listener], tls_config=trusting), cluster(PAIR[0])).listeners[0].tls, "it is not dialled"


def test_a_node_with_an_authenticator_but_no_credential_provider_causes_a_warning():
    guarded = {"authenticators": (config.AuthenticatorConfig(name="BasicAuthenticator"),)}
    shown = config.AuthenticatorConfig(name="BasicCredentialProvider")
    for endpoints, provider, found in ((PAIR, None, 1), (PAIR[:1], None, 0), (PAIR, shown, 0)):
        notices = []
        compose_from(app(authentication=config.AuthenticationConfig(**guarded, credential_provider=provider)),
                     cluster(*endpoints), notices=notices)
        assert [notice.path for notice in notices] == ["appConfig.authentication.credentialProvider"] * found


def test_the_port_member_is_not_validated_if_there_are_listeners():
    """Files with listeners contain -1."""
    assert "tcpInterface.port: found -1, expected a port" in refusal(app(port=-1))
    result = compose_from(app([config.Listener(name="a", port=7)], port=-1))
    assert [each.port for each in result.listeners] == [7]


def test_invalid_cluster_definitions_are_refused():
    bad = cluster("tcp://localhost:1", "nowhere")
    bad["nodes"][1]["id"] = 1
    text = refusal(app(), bad, cluster(name="c"), virtual=[{"name": "d", "selfNodeId": 1}])
    assert ('myClusters[0].nodes[1].transport.tcp.endpoint: found "nowhere", expected "tcp://host:port" or '
            '"tls://host:port"') in text
    text = refusal(app(), bad, cluster(name="c"), virtual=[{"name": "c", "selfNodeId": 9}])
    assert 'myClusters[0].nodes[1].transport.tcp.endpoint: found "nowhere", expected "tcp://host:port"' in text
    assert "myClusters[0].nodes[1].id: found 1 again" in text
    assert 'myClusters[1].name: found "c" again' in text
    assert "myClusters[1].nodes: is empty" in text
    assert "myVirtualClusters[0].selfNodeId: found 9, expected a node of the cluster \"c\" in myClusters" in text


PAIR = ("tcp://localhost:30114", "tcp://otherhost:30114")


@pytest.mark.parametrize("elector, words", [
    ({"heartbeatBroadcastPeriodMs": 0}, "elector.heartbeatBroadcastPeriodMs: found 0, expected more"),
    ({"heartbeatCheckPeriodMs": 0}, "elector.heartbeatCheckPeriodMs: found 0"),
    ({"heartbeatMissCount": 0}, "elector.heartbeatMissCount: found 0"),
    ({"maxRandomWaitTimeoutMs": 0}, "elector.maxRandomWaitTimeoutMs: found 0"),
    ({"scoutingResultTimeoutMs": 0}, "elector.scoutingResultTimeoutMs: found 0"),
    ({"electionResultTimeoutMs": 0}, "elector.electionResultTimeoutMs: found 0"),
    ({"leaseMs": 99}, "elector.leaseMs: found 99, expected 0, or at least 100 and less than"),
    ({"leaseMs": 20000}, "elector.leaseMs: found 20000"),
    ({"leaseMs": 1000, "heartbeatMissCount": 2, "heartbeatBroadcastPeriodMs": 500}, "elector.leaseMs: found 1000"),
    ({"initialWaitTimeoutMs": 3000}, "elector.initialWaitTimeoutMs: found 3000, expected more than maxRandomWaitTimeoutMs")])
def test_elector_settings_that_prevent_elections_are_refused_for_several_nodes(elector, words):
    assert f"myClusters[0].{words}" in refusal(app(), {**cluster(*PAIR), "elector": elector})
    compose_from(app(), {**cluster(PAIR[0]), "elector": elector})


def test_node_ids_of_several_nodes_must_be_above_zero():
    both = cluster(*PAIR)
    both["nodes"][0]["id"] = 0
    assert "myClusters[0].nodes[0].id: found 0, expected more than 0" in refusal(app(), both)
    compose_from(app(), {**both, "nodes": both["nodes"][:1]})


def test_a_configure_timeout_above_the_close_timeout_causes_a_warning():
    notices, slow = [], cluster("tcp://localhost:30114")
    slow["queueOperations"] = {"configureTimeoutMs": 2, "closeTimeoutMs": 1}
    compose_from(app(), slow, notices=notices)
    assert [notice.path for notice in notices] == ["myClusters[0].queueOperations.configureTimeoutMs"]


# --------------------------------------------------------------------------------------------------------- whole check
def directory_with(tmp_path, domains=(), **app_members):
    (tmp_path / "domains").mkdir()
    (tmp_path / "bmqbrkrcfg.json").write_text(json.dumps({"appConfig": {
        "networkInterfaces": {"tcpInterface": {"port": 1}}, **app_members}}, indent=1))
    own_cluster = cluster("tcp://localhost:1")
    for member in ("location", "archiveLocation"):
        (tmp_path / member).mkdir()
        own_cluster["partitionConfig"][member] = str(tmp_path / member)
    own_cluster["partitionConfig"] |= {"maxDataFileSize": 1 << 20, "maxJournalFileSize": 1 << 20}
    (tmp_path / "clusters.json").write_text(json.dumps({"myClusters": [own_cluster]}, indent=1))
    for name, data in dict(domains).items():
        (tmp_path / "domains" / f"{name}.json").write_text(json.dumps(data))
    return str(tmp_path)


def test_an_invalid_authorization_rule_is_reported_with_its_line(tmp_path):
    directory = directory_with(tmp_path, stats={"snapshotInterval": 7})
    [problem], _ = check(directory, environment={})
    lines = (tmp_path / "bmqbrkrcfg.json").read_text().splitlines()
    assert '"stats"' in lines[problem.line - 1], "an absent member has the line of its object"


@pytest.mark.parametrize("authentication, words", [
    ({"authenticators": [{"name": "BasicAuthenticator"}, {"name": "BasicAuthenticator"}],
      "anonymousCredential": {"disallow": {}}}, "Duplicate authenticator mechanism 'BASIC'"),
    ({"authenticators": [{"name": "no.such.Class"}]}, "no.such.Class"),
    ({"authenticators": [{"name": "AnonAuthenticator"}]}, "anonymous credential is not provided"),
    ({"anonymousCredential": {"credential": {"mechanism": "BASIC", "identity": "a:b"}}}, "does not match")])
def test_the_check_reports_an_inconsistent_authentication_configuration(tmp_path, authentication, words):
    problems, _ = check(directory_with(tmp_path, authentication=authentication), environment={})
    assert len(problems) == 1 and problems[0].path == "appConfig.authentication" and words in problems[0].text
    assert problems[0].line > 0


def test_the_check_warns_about_a_plain_text_password(tmp_path):
    authentication = {"authenticators": [{"name": "BasicAuthenticator", "settings": [
        {"key": "alice", "value": {"stringVal": "sesame"}}]}], "anonymousCredential": {"disallow": {}}}
    problems, warnings = check(directory_with(tmp_path, authentication=authentication), environment={})
    assert problems == [] and any("readable" in warning.text for warning in warnings)
    assert not any("sesame" in str(warning) for warning in warnings)


@pytest.mark.parametrize("members, path, close", [
    ({"bmqtwist": {"authorization": {"rules": [{"pricipal": "alice", "effect": "allow"}]}}},
     "appConfig.bmqtwist.authorization.rules[0].pricipal", "principal"),
    ({"bmqtwist": {"authorization": {"defualt": "deny"}}}, "appConfig.bmqtwist.authorization.defualt", "default"),
    ({"authentication": {"anonymousCredentials": {"disallow": {}}}},
     "appConfig.authentication.anonymousCredentials", "anonymousCredential"),
    ({"authentication": {"authenticators": [{"name": "BasicAuthenticator", "setings": []}]}},
     "appConfig.authentication.authenticators[0].setings", "settings"),
    ({"authorization": {"autorizer": None}}, "appConfig.authorization.autorizer", "authorizer"),
    ({"tlsConfig": {"certificate": "c", "key": "k", "version": "TLSv1.3"}}, "appConfig.tlsConfig.version", "versions")])
def test_a_mistyped_member_in_security_settings_is_refused(tmp_path, members, path, close):
    """An ignored member could permit access; in other sections it is a warning."""
    directory = directory_with(tmp_path, mystery=1, **members)
    with pytest.raises(ConfigError) as caught:
        load(directory, environment={})
    [problem] = caught.value.findings
    assert problem.path == path and problem.line and f'did you mean "{close}"?' in problem.text
    assert "ignored" not in problem.text


def test_the_check_reports_problems_that_would_fail_a_start(tmp_path):
    """The check lists all problems, each with its line."""
    directory = directory_with(
        tmp_path, networkInterfaces={"tcpInterface": {"listeners": [{"name": "l", "address": "10.0.0.999", "port": 1}]}},
        tlsConfig={"certificate": "/no/such/certificate", "key": "/no/such/key"},
        bmqtwist={"eventBytesMax": 1000, "http": {"address": "no address", "keyFile": "/no/such/key"}})
    broker = json.loads((tmp_path / "bmqbrkrcfg.json").read_text())
    broker["taskConfig"] = {"logController": {"fileName": "/dev/null/place/log.%T", "categories": ["*:LOUD:"]}}
    (tmp_path / "bmqbrkrcfg.json").write_text(json.dumps(broker, indent=1))
    clusters = json.loads((tmp_path / "clusters.json").read_text())
    clusters["myClusters"][0]["partitionConfig"] |= {"location": "/dev/null/place", "maxJournalFileSize": 10}
    (tmp_path / "clusters.json").write_text(json.dumps(clusters, indent=1))
    problems, _ = check(directory, environment={})
    tcp, storage = "appConfig.networkInterfaces.tcpInterface", "myClusters[0].partitionConfig"
    assert {problem.path for problem in problems} == {
        f"{tcp}.listeners[0].address", "appConfig.bmqtwist.http.address", "appConfig.bmqtwist.http.keyFile",
        "appConfig.tlsConfig", "appConfig.bmqtwist.eventBytesMax", f"{storage}.location", f"{storage}.maxJournalFileSize",
        *(f"taskConfig.logController.{member}" for member in ("fileName", "categories"))}
    for problem in problems:
        line = Path(problem.file).read_text().splitlines()[problem.line - 1]
        assert f'"{problem.path.rpartition(".")[2]}"' in line, problem


@pytest.mark.parametrize("first, second, http, found", [
    ("127.0.0.1", "127.0.0.1", 0, ["listeners[1].port"]), ("127.0.0.1", "127.0.0.2", 0, []),
    ("127.0.0.1", "0.0.0.0", 0, ["listeners[1].port"]), ("127.0.0.1", "127.0.0.2", 31000, ["http.port"])])
def test_the_check_reports_two_uses_of_one_port(tmp_path, first, second, http, found):
    listeners = [{"name": name, "address": address, "port": 31000} for name, address in (("a", first), ("b", second))]
    directory = directory_with(tmp_path, networkInterfaces={"tcpInterface": {"listeners": listeners}},
                               bmqtwist={"http": {"port": http}})
    problems = check(directory, environment={})[0]
    assert [problem.path.rpartition("tcpInterface.")[2].rpartition("bmqtwist.")[2] for problem in problems] == found
    assert all(problem.line for problem in problems)


def test_the_check_reports_an_expired_certificate(tmp_path):
    key = crypto.PKey()
    key.generate_key(crypto.TYPE_RSA, 2048)
    for seconds, found in ((3600, []), (-3600, ["appConfig.tlsConfig.certificate"])):
        made = crypto.X509()
        made.set_pubkey(key)
        made.gmtime_adj_notBefore(-7200)
        made.gmtime_adj_notAfter(seconds)
        made.sign(key, "sha256")
        (tmp_path / "cert").write_bytes(crypto.dump_certificate(crypto.FILETYPE_PEM, made))
        (tmp_path / "key").write_bytes(crypto.dump_privatekey(crypto.FILETYPE_PEM, key))
        (tmp_path / str(seconds)).mkdir()
        directory = directory_with(tmp_path / str(seconds), tlsConfig={"certificate": f"{tmp_path}/cert",
                                                                       "key": f"{tmp_path}/key"})
        assert [problem.path for problem in check(directory, environment={})[0]] == found


def test_the_check_follows_redirects_and_locations(tmp_path):
    limits = {"messages": 1, "bytes": 1}
    definition = {"definition": {"location": "nowhere", "parameters": {
        "mode": {"priority": {}}, "messageTtl": 1,
        "storage": {"config": {"inMemory": {}}, "domainLimits": limits, "queueLimits": limits}}}}
    directory = directory_with(tmp_path, {"a": {"redirect": "b"}, "b": definition, "c": {"redirect": "a"},
                                          "d": {"redirect": "gone"}})
    problems, warnings = check(directory, environment={})
    assert sorted(str(problem).removeprefix(f"{directory}/domains/").partition(":")[0] for problem in problems) == [
        "c.json", "d.json"]
    assert [warning.path for warning in warnings] == ["definition.location"]


def test_classes_are_found_by_their_dotted_name():
    assert find_class("bmqtwist.security.authenticators.AnonAuthenticator").__name__ == "AnonAuthenticator"
    for name in ("AnonAuthenticator", "bmqtwist.security.authenticators.Nothing", "no.such.module.Class", ""):
        with pytest.raises(LocalError):
            find_class(name)
