"""Validation of configuration directories, and the generated documentation of the members."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmqtwist.config import broker as config
from bmqtwist.config.clusters import Clusters
from bmqtwist.config.declare import ConfigError, decode_text
from bmqtwist.config.domain import DomainConfig, DomainVariant, ExpressionConfig, SubscriptionConfig
from bmqtwist.config.load import load, read_text
from bmqtwist.config.text import bracketed, plain, pretty_json
from bmqtwist.daemon.preflight import check

ROOT = Path(__file__).resolve().parents[3]
LIMITS = {"messages": 2000, "messagesWatermarkRatio": 0.8, "bytes": 2097152, "bytesWatermarkRatio": 0.8}
PROCESSORS = {"numProcessors": 4, "processorConfig": {"queueSize": 500000, "queueSizeLowWatermark": 100000,
                                                      "queueSizeHighWatermark": 200000}}


def broker_of_the_original():
    """The usual members of a C++ broker's file, and some unknown members."""
    return {
        "taskConfig": {
            "allocatorType": "COUNTING", "allocationLimit": 34359738368, "futureTask": {"deep": [1, {"er": None}]},
            "logController": {
                "fileName": "logs/logs.%T.%p", "fileMaxAgeDays": 10, "rotationBytes": 268435456,
                "logfileFormat": "%d (%t) %s %F:%l %m\n\n", "consoleFormat": "%d (%t) %s %F:%l %m\n",
                "loggingVerbosity": "info", "bslsLogSeverityThreshold": "INFO", "consoleSeverityThreshold": "INFO",
                "categories": ["BMQBRKR:INFO:green", "BMQ*:INFO:green", "MQB*:INFO:green"],
                "syslog": {"enabled": False, "appName": "BMQ", "logFormat": "%m", "verbosity": ""},
                "logDump": {"recordBufferSize": 32768, "recordingLevel": "OFF", "triggerLevel": "OFF"}}},
        "appConfig": {
            "brokerInstanceName": "default", "brokerVersion": 999999, "configVersion": 999999, "etcDir": "",
            "hostName": "earth", "hostTags": "", "hostDataCenter": "UNSPECIFIED", "logsObserverMaxSize": 1000,
            "latencyMonitorDomain": "bmq.sys.latemon.latency", "hostname": "typo",
            "dispatcherConfig": {"sessions": PROCESSORS, "queues": PROCESSORS, "clusters": PROCESSORS},
            "stats": {"snapshotInterval": 1, "plugins": [],
                      "printer": {"printInterval": 60, "file": "logs/stat.%T.%p", "maxAgeDays": 3,
                                  "rotateBytes": 268435456, "rotateDays": 1}},
            "networkInterfaces": {
                "heartbeats": {"client": 10, "downstreamBroker": 10, "upstreamBroker": 10, "clusterPeer": 10},
                "tcpInterface": {"name": "TCPInterface", "port": 30114, "ioThreads": 4, "maxConnections": 10000,
                                 "lowWatermark": 4194304, "highWatermark": 1073741824, "nodeLowWatermark": 5242880,
                                 "nodeHighWatermark": 10485760, "heartbeatIntervalMs": 3000}},
            "bmqconfConfig": {"cacheTTLSeconds": 30}, "plugins": {"libraries": ["/opt/plugins"], "enabled": []},
            "messagePropertiesV2": {"advertiseV2Support": True, "minCppSdkVersion": 11207, "minJavaSdkVersion": 10},
            "configureStream": True, "advertiseSubscriptions": True, "routeCommandTimeoutMs": 3000}}


def clusters_of_the_original():
    """One node, with all sections."""
    return {
        "myClusters": [{
            "name": "local", "futureCluster": 1,
            "nodes": [{"id": 0, "name": "localhost", "dataCenter": "UNSPECIFIED", "rack": 7,
                       "transport": {"tcp": {"endpoint": "tcp://localhost:30114"}}}],
            "partitionConfig": {
                "name": "local", "numPartitions": 1, "location": "storage", "archiveLocation": "storage/archive",
                "maxDataFileSize": 268435456, "maxJournalFileSize": 67108864, "maxQlistFileSize": 8388608,
                "maxCSLFileSize": 8388608, "preallocate": False, "maxArchivedFileSets": 0, "prefaultPages": False,
                "flushAtShutdown": True, "syncConfig": {"fileChunkSize": 0, "startupWaitDurationMs": 0}},
            "masterAssignment": "E_LEADER_IS_MASTER_ALL",
            "clusterAttributes": {"isCSLModeEnabled": False, "isFSMWorkflow": False},
            "elector": {"quorum": 0, "heartbeatMissCount": 10, "initialWaitTimeoutMs": 8000},
            "queueOperations": {"openTimeoutMs": 300000, "ackWindowSize": 500},
            "clusterMonitorConfig": {"maxTimeLeader": 60, "thresholdFailover": 120},
            "messageThrottleConfig": {"lowThreshold": 2, "highInterval": 3000}}],
        "proxyClusters": []}


def domain_of_the_original():
    """A fanout domain with an unknown and an ignored member."""
    return {"definition": {"location": "local", "parameters": {
        "mode": {"fanout": {"appIDs": ["foo", "bar"]}}, "futureDomain": [],
        "storage": {"config": {"fileBacked": {}}, "domainLimits": LIMITS, "queueLimits": LIMITS},
        "msgGroupIdConfig": {"rebalance": False, "maxGroups": 10, "ttlSeconds": 0},
        "maxDeliveryAttempts": 0, "deduplicationTimeMs": 300000, "consistency": {"eventual": {}},
        "messageTtl": 300, "maxProducers": 0, "maxConsumers": 0, "maxQueues": 0, "maxIdleTime": 0}}}


@pytest.fixture
def directory(tmp_path):
    """A configuration directory of a C++ broker; `write(directory, name, data)` replaces a file."""
    (tmp_path / "domains").mkdir()
    write(tmp_path, "bmqbrkrcfg.json", broker_of_the_original())
    write(tmp_path, "clusters.json", clusters_of_the_original())
    write(tmp_path, "domains/bmq.test.fanout.json", domain_of_the_original())
    return tmp_path


def write(directory, name, data):
    """Write JSON with one member per line, so that each member has its own line number."""
    (directory / name).write_text(data if isinstance(data, str) else json.dumps(data, indent=4))


def refusal_lines(directory):
    with pytest.raises(ConfigError) as caught:
        load(str(directory), environment={})
    return str(caught.value).splitlines()


@pytest.mark.spec("broker", 2)
def test_a_directory_of_the_original_with_unknown_members_in_every_file_is_accepted(directory, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "storage" / "archive").mkdir(parents=True, exist_ok=True)
    (tmp_path / "logs").mkdir(exist_ok=True)
    problems, warnings = check(str(directory), environment={})
    assert problems == []
    paths = {finding.path for finding in warnings}
    assert {"taskConfig.futureTask", "appConfig.hostname", "myClusters[0].futureCluster",
            "myClusters[0].nodes[0].rack", "definition.parameters.futureDomain"} <= paths


def test_each_unknown_or_ignored_member_causes_one_warning(directory):
    warnings = [str(finding) for finding in load(str(directory), environment={}).warnings]
    assert len(set(warnings)) == len(warnings)
    ignored = [text for text in warnings if "has no effect here" in text]
    for path in ("taskConfig.allocatorType", "taskConfig.allocationLimit", "taskConfig.logController.syslog",
                 "appConfig.dispatcherConfig.queues", "appConfig.logsObserverMaxSize", "appConfig.plugins.libraries",
                 "appConfig.networkInterfaces.tcpInterface.ioThreads", "myClusters[0].clusterAttributes",
                 "myClusters[0].partitionConfig.name"):
        assert len([text for text in ignored if f": {path}: " in text]) == 1, path
    assert not [text for text in warnings if "syslog.appName" in text], "the warning names the object, not its members"


def test_the_warning_of_an_unknown_member_has_file_line_path_and_a_suggestion(directory):
    warnings = [str(finding) for finding in load(str(directory), environment={}).warnings]
    lines = (directory / "bmqbrkrcfg.json").read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if '"hostname"' in text)
    assert (f'{directory}/bmqbrkrcfg.json:{line}: appConfig.hostname: unknown member, ignored; did you mean '
            '"hostName"?') in warnings


def test_strict_validation_refuses_unknown_members(directory):
    with pytest.raises(ConfigError, match="futureTask"):
        load(str(directory), environment={}, strict=True)
    problems, warnings = check(str(directory), environment={}, strict=True)
    assert warnings == [] and any("futureDomain" in finding.path for finding in problems)


@pytest.mark.parametrize("change, path, words", [
    (lambda d: d["myClusters"][0]["partitionConfig"].update(numPartitions="x"),
     "myClusters[0].partitionConfig.numPartitions", 'found string "x", expected an integer from 1 to 1000'),
    (lambda d: d["myClusters"][0]["partitionConfig"].update(numPartitions=1001),
     "myClusters[0].partitionConfig.numPartitions", "found number 1001, expected an integer from 1 to 1000"),
    (lambda d: d["myClusters"][0]["partitionConfig"].update(numPartitions=0),
     "myClusters[0].partitionConfig.numPartitions", "found number 0, expected an integer from 1"),
    (lambda d: d["myClusters"][0]["partitionConfig"].update(preallocate=1),
     "myClusters[0].partitionConfig.preallocate", "found number 1, expected true or false"),
    (lambda d: d["myClusters"][0]["partitionConfig"].update(maxDataFileSize=True),
     "myClusters[0].partitionConfig.maxDataFileSize", "found true, expected an integer from 0 to 18446744073709551615"),
    (lambda d: d["myClusters"][0]["partitionConfig"].update(maxDataFileSize=1 << 64),
     "myClusters[0].partitionConfig.maxDataFileSize", "expected an integer from 0 to 18446744073709551615"),
    (lambda d: d["myClusters"][0].update(nodes={}), "myClusters[0].nodes", "found an object, expected an array"),
    (lambda d: d["myClusters"][0]["nodes"].append(5), "myClusters[0].nodes[1]", "found number 5, expected an object"),
    (lambda d: d["myClusters"][0].update(masterAssignment="E_LEAST_ASIGNED"), "myClusters[0].masterAssignment",
     'did you mean "E_LEAST_ASSIGNED"?'),
    (lambda d: d["myClusters"][0].update(name=3), "myClusters[0].name", "found number 3, expected a string"),
    (lambda d: d["myClusters"][0]["partitionConfig"].update(location="a\0b"), "myClusters[0].partitionConfig.location",
     "expected a string without NUL characters"),
])
def test_a_member_of_a_wrong_type_is_refused_with_file_line_path_and_expected_type(directory, change, path, words):
    data = clusters_of_the_original()
    change(data)
    write(directory, "clusters.json", data)
    [text] = refusal_lines(directory)
    assert text.startswith(f"{directory}/clusters.json:") and f": {path}: " in text and words in text
    line = int(text.removeprefix(f"{directory}/clusters.json:").partition(":")[0])
    written = (directory / "clusters.json").read_text().splitlines()[line - 1]
    assert path.endswith("]") or f'"{path.rpartition(".")[2]}"' in written


def test_missing_members_are_refused_and_all_problems_are_listed(directory):
    data = clusters_of_the_original()
    del data["myClusters"][0]["partitionConfig"]["location"]
    data["myClusters"][0]["nodes"][0]["id"] = "one"
    write(directory, "clusters.json", data)
    texts = refusal_lines(directory)
    assert len(texts) == 2
    assert any("partitionConfig.location: is missing, expected a string" in text for text in texts)
    assert any('nodes[0].id: found string "one", expected an integer' in text for text in texts)


def test_a_missing_or_malformed_file_is_refused_with_its_name(directory):
    write(directory, "clusters.json", '{"myClusters": [\n}')
    (directory / "bmqbrkrcfg.json").unlink()
    texts = refusal_lines(directory)
    assert f"{directory}/bmqbrkrcfg.json: cannot be read: No such file or directory" in texts
    assert any(text.startswith(f"{directory}/clusters.json:2: not JSON: ") for text in texts)


def test_null_and_missing_members_have_the_default_values():
    app = decode_text(config.BrokerConfig, '{"appConfig": {"stats": null, "tlsConfig": null}}', "f", []).app_config
    assert app == config.AppConfig()
    assert (app.stats.snapshot_interval, app.stats.printer.print_interval) == (1, 60)
    assert app.stats.printer.encoding == "TABLE_AND_JSON" and app.stats.printer.rotate_bytes == 268435456
    assert app.message_properties_v2.min_cpp_sdk_version == 11207
    assert app.network_interfaces.tcp_interface is None and app.network_interfaces.heartbeats.client == 0
    assert app.route_command_timeout_ms == 3000 and app.dispatcher_config.alarm_timeout_ms == 180000


def test_the_extension_members_have_safe_defaults():
    own = config.BmqtwistConfig()
    assert own.durability == "group"
    assert (own.http.address, own.http.port) == ("127.0.0.1", 0)
    assert own.outbox_bytes_max == 256 << 20 and own.payload_cache_bytes == 67108864
    assert own.sessions_per_identity_max == 0 and own.unauthenticated_seconds_max == 180
    assert own.authorization.default == "allow" and own.authorization.rules == ()


def test_a_misspelt_durability_is_refused_with_a_suggestion(directory):
    data = broker_of_the_original()
    data["appConfig"]["bmqtwist"] = {"durability": "Always"}
    write(directory, "bmqbrkrcfg.json", data)
    [text] = refusal_lines(directory)
    assert 'bmqtwist.durability: found string "Always", expected one of "none", "group", "always"' in text
    assert 'did you mean "always"?' in text


def test_a_choice_requires_exactly_one_of_its_members():
    def error_text(mode):
        data = domain_of_the_original()
        data["definition"]["parameters"]["mode"] = mode
        with pytest.raises(ConfigError) as caught:
            decode_text(DomainVariant, json.dumps(data), "f", [])
        return str(caught.value)

    expected = 'expected exactly one of "fanout", "priority", "broadcast"'
    assert f"mode: found none of them, {expected}" in error_text({"roundrobin": {}})
    assert f'mode: found "priority", "broadcast", {expected}' in error_text({"priority": {}, "broadcast": {}})
    assert "mode.priority: found true, expected an object" in error_text({"priority": True})


@given(st.data())
def test_any_changed_file_is_a_configuration_or_a_config_error(data):
    cls, make = data.draw(st.sampled_from([(config.BrokerConfig, broker_of_the_original),
                                           (Clusters, clusters_of_the_original),
                                           (DomainVariant, domain_of_the_original)]))
    root = [json.loads(json.dumps(make()))]
    holder, key = root, 0
    for _ in range(data.draw(st.integers(0, 6))):
        value = holder[key]
        if not isinstance(value, (dict, list)) or not value:
            break
        holder, key = value, data.draw(st.sampled_from(list(value) if isinstance(value, dict) else range(len(value))))
    holder[key] = data.draw(st.sampled_from([None, True, -1, 0, 1 << 70, 0.5, "", "x", [], {}, [None], {"x": 1}]))
    notices = []
    try:
        assert isinstance(decode_text(cls, json.dumps(root[0]), "f", notices), cls)
    except ConfigError as error:
        assert error.findings and all(finding.line == 1 for finding in error.findings)


def test_log_levels_are_case_insensitive(directory):
    controller = load(str(directory), environment={}).configuration.broker.task_config.log_controller
    assert controller.logging_verbosity == "INFO"


def test_a_repeated_member_causes_a_warning():
    notices = []
    app = decode_text(config.BrokerConfig, '{"appConfig": {"hostName": "a", "hostName": "b"}}', "f", notices).app_config
    assert app.host_name == "b"
    assert [str(notice) for notice in notices] == [
        "f:1: appConfig.hostName: appears more than once; the last one is used"]


def test_integers_are_accepted_as_numbers_and_integral_numbers_as_integers():
    """Helm, jq and converters from YAML write 1.048576e+06 for 1048576."""
    data = domain_of_the_original()
    limits = data["definition"]["parameters"]["storage"]["queueLimits"] = dict(LIMITS, messagesWatermarkRatio=1)
    variant = decode_text(DomainVariant, json.dumps(data), "f", [])
    assert variant.definition.parameters.storage.queue_limits.messages_watermark_ratio == 1.0
    limits["messages"] = 10.0
    text = json.dumps(data).replace('"messages": 10.0', '"messages": 1.048576e+06')
    messages = decode_text(DomainVariant, text, "f", []).definition.parameters.storage.queue_limits.messages
    assert messages == 1048576 and isinstance(messages, int)
    for wrong in (10.5, 1e40):
        limits["messages"] = wrong
        with pytest.raises(ConfigError, match=r"queueLimits.messages: found number .*, expected an integer"):
            decode_text(DomainVariant, json.dumps(data), "f", [])


# ------------------------------------------------------------------------------------------------ sample and documents
def test_the_sample_configuration_has_neither_problems_nor_warnings(monkeypatch, tmp_path):
    """Its directories exist, as `make run` creates them."""
    monkeypatch.chdir(tmp_path)
    for name in ("storage", "archive", "logs"):
        (tmp_path / "data" / name).mkdir(parents=True)
    assert check(str(ROOT / "etc"), environment={}, strict=True) == ([], [])


def test_the_sample_configuration_is_one_node_on_loopback_with_the_conventional_domains(monkeypatch):
    monkeypatch.chdir(ROOT)
    configuration = load("etc", environment={}).configuration
    assert [(each.address, each.port, each.tls) for each in configuration.listeners] == [("127.0.0.1", 30114, False)]
    [cluster] = configuration.clusters.my_clusters
    assert (cluster.name, cluster.partition_config.num_partitions) == ("local", 4)
    assert configuration.self_nodes == {"local": cluster.nodes[0].id}
    assert sorted(path.stem for path in (ROOT / "etc/domains").glob("*.json")) == [
        "bmq.test.mem.broadcast", "bmq.test.mem.fanout", "bmq.test.mem.priority", "bmq.test.persistent.fanout",
        "bmq.test.persistent.fanout.sc", "bmq.test.persistent.priority", "bmq.test.persistent.priority.large",
        "bmq.test.persistent.priority.sc"]


@pytest.mark.parametrize("path", sorted((ROOT / "etc/domains").glob("*.json")), ids=lambda path: path.stem)
def test_a_sample_domain_has_the_mode_and_storage_of_its_name(path):
    parameters = decode_text(DomainVariant, path.read_text(), path.name, []).definition.parameters
    assert parameters.mode.kind == path.stem.split(".")[3]
    assert parameters.in_memory == (".mem." in path.stem)
    assert parameters.strong == path.stem.endswith(".sc")
    assert parameters.message_ttl == 300
    large = path.stem.endswith(".large")
    limits = parameters.storage.domain_limits, parameters.storage.queue_limits
    assert [each.messages for each in limits] == ([1_000_000, 1_000_000] if large else [2000, 1000])
    assert [each.bytes for each in limits] == ([128 << 20, 128 << 20] if large else [2 << 20, 1 << 20])
    assert parameters.app_ids == (("foo", "bar", "baz") if parameters.mode.kind == "fanout" else ())


def test_the_tables_of_the_configuration_page_are_up_to_date():
    text = (ROOT / "docs/configuration.md").read_text()
    refresh = runpy.run_path(str(ROOT / "docs/make_configuration.py"))["refresh"]
    assert refresh(text) == text, "run: python docs/make_configuration.py"


def test_every_member_is_documented_with_the_unit_of_its_name():
    def members(cls, seen):
        if cls not in seen and hasattr(cls, "__dataclass_fields__"):
            seen.add(cls)
            for declared in cls.DECLARED:
                yield declared
                yield from members(declared.kind, seen)

    roots = (config.BrokerConfig, Clusters, DomainVariant)
    everything = [each for root in roots for each in members(root, set())]
    assert len(everything) > 200
    for declared in everything:
        assert declared.text, declared.name
        for ending, unit in (("Ms", "ms"), ("Days", "days"), ("Bytes", "B"), ("BytesMax", "B"), ("FileSize", "B")):
            if declared.name.endswith(ending):
                assert declared.unit == unit, declared.name


# ------------------------------------------------------------------------------------------------------------ printing
def test_a_domain_definition_prints_as_in_admin_answers():
    data = domain_of_the_original()
    del data["definition"]["parameters"]["msgGroupIdConfig"]
    text = pretty_json(decode_text(DomainVariant, json.dumps(data), "f", []).definition.parameters)
    assert text.startswith('{\n  "name": "",\n  "mode": {\n    "fanout": {\n      "appIDs": [\n        "foo",\n'
                           '        "bar"\n      ],\n      "publishAppIdMetrics": true\n    }\n  },\n  "storage": {\n')
    assert '    "config": {\n      "fileBacked": {\n\n      }\n    }\n  },\n  "maxConsumers": 0,\n' in text
    assert text.endswith('  "consistency": {\n    "eventual": {\n\n    }\n  }\n}\n')
    assert "subscriptions" not in text and "msgGroupIdConfig" not in text


def test_a_printed_domain_definition_decodes_to_the_same_configuration():
    parameters = decode_text(DomainVariant, json.dumps(domain_of_the_original()), "f", []).definition.parameters
    assert decode_text(DomainConfig, pretty_json(parameters), "f", []) == parameters


def test_an_expression_is_printed_in_brackets():
    expression = ExpressionConfig(version="E_VERSION_1", text="x >")
    assert bracketed(SubscriptionConfig(app_id="foo", expression=expression)) == (
        '[ appId = "foo" expression = [ version = E_VERSION_1 text = "x >" ] ]')


def test_passwords_are_not_printed():
    text = """{"appConfig": {"authentication": {
        "authenticators": [{"name": "BasicAuthenticator",
                            "settings": [{"key": "alice", "value": {"stringVal": "sesame"}}]}],
        "anonymousCredential": {"credential": {"mechanism": "BASIC", "identity": "alice:sesame"}}}}}"""
    app = decode_text(config.BrokerConfig, text, "f", []).app_config
    assert app.authentication.authenticators[0].settings[0].value.value == "sesame"
    assert "sesame" not in json.dumps(plain(app)) and "sesame" not in pretty_json(app)
    assert '"***"' in pretty_json(app)


def test_invalid_utf8_in_a_file_is_read_with_a_replacement_character(tmp_path):
    (tmp_path / "x.json").write_bytes(b'{"redirect": "a\xff"}')
    assert decode_text(DomainVariant, read_text(str(tmp_path / "x.json")), "f", []).redirect == "a\ufffd"
