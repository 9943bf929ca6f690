"""Provider of domain definitions: redirects, caches, validation, and reconfiguration, with the answers of BlazingMQ."""

from __future__ import annotations

import json

import pytest

from bmqtwist.config.engine_settings import domain_settings
from bmqtwist.config.load import DomainReader
from bmqtwist.config.provider import (
    STAMP_PERIOD_S,
    DomainFile,
    DomainProvider,
    LoadedDomain,
    ResolvedDomain,
    check_domain_text,
    validate_definition,
)
from bmqtwist.errors import Category, LocalError, Refused
from bmqtwist.report import ListReport


def limits(**changes):
    return {"messages": 2000, "messagesWatermarkRatio": 0.8, "bytes": 2097152, "bytesWatermarkRatio": 0.8, **changes}


def definition(mode="priority", storage="fileBacked", location="c3", consistency="eventual", **changes):
    """Return a domain's file as data; `changes` replace parameters."""
    return {"definition": {"location": location, "parameters": {
        "mode": mode if isinstance(mode, dict) else {mode: {}}, "messageTtl": 300, "consistency": {consistency: {}},
        "storage": storage if isinstance(storage, dict) else {
            "config": {storage: {}}, "domainLimits": limits(), "queueLimits": limits()}, **changes}}}


def expression(text, version="E_VERSION_1", app_id=""):
    return {"appId": app_id, "expression": {"version": version, "text": text}}


class MemorySource:
    """DomainSource over a dictionary that counts reads."""

    def __init__(self, **files):
        self.files = {name.replace("__", "."): content for name, content in files.items()}
        self.proxies = {}
        self.reads = []
        self.time_stamp = 1

    def read(self, name):
        self.reads.append(name)
        return self._file("domains", name, self.files)

    def read_proxy_cluster(self, name):
        return self._file("proxyclusters", name, self.proxies)

    @staticmethod
    def _file(folder, name, files):
        content = files.get(name)
        text = content if content is None or isinstance(content, str) else json.dumps(content, indent=1)
        return DomainFile(f"etc/{folder}/{name}.json", text, missing=content is None)

    def stamp(self):
        return self.time_stamp


def provider(ttl=30.0, **files):
    source, report = MemorySource(**files), ListReport()
    return DomainProvider(source, ttl, report), source, report


def refusal(call, *args):
    with pytest.raises(Refused) as caught:
        call(*args)
    return caught.value


# ------------------------------------------------------------------------------------------------------- resolving
def test_a_domain_name_is_resolved_to_its_file_with_its_tier():
    domains, source, _ = provider(d=definition(location="one"))
    source.files["d.~lab"] = definition(location="two")
    assert domains.resolve("d", 0) == ResolvedDomain("d", "one")
    assert domains.resolve("d.~lab", 0) == ResolvedDomain("d.~lab", "two")


def test_a_redirect_is_resolved_to_name_and_cluster_of_its_target():
    domains, _, report = provider(a={"redirect": "b"}, b=definition(location="east", maxQueues=7))
    loaded = domains.load("a", 0)
    assert (loaded.name, loaded.cluster, loaded.config.max_queues) == ("b", "east", 7)
    assert "Redirecting a to b" in report.texts("INFO")


def test_the_deduplication_time_of_a_domain_is_read_without_loading_it():
    domains, source, _ = provider(a={"redirect": "b"}, b=definition(deduplicationTimeMs=1500), c={"redirect": "a"}, d="{")
    assert [domains.deduplication_s(name) for name in "abcde"] == [1.5, 1.5, None, None, None]
    source.files["b"] = definition(deduplicationTimeMs=2500)
    assert domains.deduplication_s("a") == 2.5


@pytest.mark.spec("broker", 11)
def test_a_loop_of_redirects_is_refused_after_two_files():
    domains, source, _ = provider(t__loopa={"redirect": "t.loopb"}, t__loopb={"redirect": "t.loopa"})
    refused = refusal(domains.resolve, "t.loopa", 0)
    assert (refused.category, refused.code) == (Category.E_UNKNOWN, -3)
    assert refused.message == "Too many redirections [domain: 't.loopa, redirections: 2']"
    assert source.reads == ["t.loopa", "t.loopb"]


def test_a_second_redirect_is_refused_also_with_a_valid_target():
    domains, _, _ = provider(a={"redirect": "b"}, b={"redirect": "c"}, c=definition())
    assert refusal(domains.resolve, "a", 0).code == -3
    assert domains.resolve("b", 0).name == "c"


def test_a_missing_file_is_refused_with_the_text_of_the_original_until_it_exists():
    domains, source, _ = provider()
    refused = refusal(domains.resolve, "t.nosuch", 0)
    assert (refused.category, refused.code) == (Category.E_UNKNOWN, -1)
    assert refused.message == "Domain file 'etc/domains/t.nosuch.json' doesn't exist"
    source.files["t.nosuch"] = definition()
    assert domains.load("t.nosuch", 0).name == "t.nosuch"


def test_an_unreadable_file_is_refused():
    domains, source, _ = provider()
    source.read = lambda name: DomainFile("etc/domains/x.json", None)
    assert refusal(domains.resolve, "x", 0).message == "Unable to open domain file 'etc/domains/x.json'"


@pytest.mark.parametrize("name", ["../clusters", "a/b", "", "a\0b", "x" * 300, "/etc/passwd"])
def test_a_name_that_leaves_the_directory_is_refused(name):
    domains, source, _ = provider()
    assert refusal(domains.resolve, name, 0).code == -1
    assert source.reads == []
    domains, source, _ = provider(a={"redirect": name})
    assert refusal(domains.resolve, "a", 0).code == (-2 if "\0" in name else -1)  # -2: not valid in a configuration
    assert source.reads == ["a"]


def test_a_malformed_file_is_refused_and_not_cached():
    domains, source, _ = provider()
    source.files["t.bad"] = '{"definition": {'
    refused = refusal(domains.resolve, "t.bad", 0)
    assert (refused.category, refused.code) == (Category.E_UNKNOWN, -2)
    assert refused.message.startswith("Error while decoding domain configuration [domain: 't.bad', rc: -1, error: '")
    assert refused.message.endswith("', from content: '{\"definition\": {']")
    source.files["t.bad"] = definition()
    assert domains.load("t.bad", 0).name == "t.bad"


def test_a_long_malformed_file_is_quoted_in_part():
    domains, source, _ = provider()
    source.files["x"] = "{" + " " * 100_000
    assert len(refusal(domains.resolve, "x", 0).message) < 2000


def test_a_malformed_target_of_a_redirect_is_reported_with_the_requested_name():
    domains, source, _ = provider(a={"redirect": "b"})
    source.files["b"] = "[]"
    assert "[domain: 'a', rc: -1" in refusal(domains.resolve, "a", 0).message


# ---------------------------------------------------------------------------------------------------------- caches
def test_a_resolved_name_is_cached_until_the_cache_is_cleared():
    domains, source, _ = provider(a=definition(location="one"))
    domains.resolve("a", 0)
    source.files["a"] = definition(location="two")
    assert domains.resolve("a", 1e6).cluster == "one"
    domains.clear_resolver("a")
    assert domains.resolve("a", 1e6).cluster == "two"
    domains.clear_resolver()
    with pytest.raises(LocalError, match="Domain 'a' doesn't exist"):
        domains.clear_resolver("a")


def test_a_changed_directory_clears_resolved_names_after_the_check_period():
    domains, source, _ = provider(a=definition(location="one"))
    domains.resolve("a", 0)
    source.files["a"] = definition(location="two")
    source.time_stamp = 2
    assert domains.resolve("a", STAMP_PERIOD_S - 1).cluster == "one"
    assert domains.resolve("a", STAMP_PERIOD_S).cluster == "two"


def test_the_content_of_a_file_is_cached_for_the_configured_time():
    domains, source, _ = provider(ttl=30.0, a=definition(maxQueues=1))
    assert domains.definition("a", 0).parameters.max_queues == 1
    source.files["a"] = definition(maxQueues=2)
    assert domains.definition("a", 29.9).parameters.max_queues == 1
    assert domains.definition("a", 30).parameters.max_queues == 2
    source.files["a"] = definition(maxQueues=3)
    domains.clear_files("a")
    assert domains.definition("a", 30).parameters.max_queues == 3
    domains.clear_files()
    with pytest.raises(LocalError, match="Domain 'a' doesn't exist"):
        domains.clear_files("a")


def test_removing_a_domain_drops_its_cached_redirects():
    domains, source, _ = provider(a={"redirect": "b"}, b=definition(), c=definition())
    for name in "abc":
        domains.load(name, 0)
    domains.drop_domain("b")
    del source.files["b"]
    assert refusal(domains.resolve, "a", 0).code == -1 and refusal(domains.resolve, "b", 0).code == -1
    assert domains.resolve("c", 0).name == "c"


def test_a_warning_about_a_file_is_logged_once_until_the_file_changes():
    domains, source, report = provider(ttl=0, a=definition(futureMember=1, msgGroupIdConfig={"rebalance": True}))
    for now in range(5):
        domains.definition("a", now)
    assert len(report.texts("WARN")) == 2
    assert any("futureMember: unknown member" in text for text in report.texts("WARN"))
    assert any("msgGroupIdConfig: has no effect here" in text for text in report.texts("WARN"))
    source.files["a"] = definition(otherMember=1, msgGroupIdConfig={"rebalance": True})
    domains.definition("a", 9)
    assert "otherMember" in report.texts("WARN")[2] and len(report.texts("WARN")) == 3


# ------------------------------------------------------------------------------------------------------ first load
def test_an_invalid_domain_is_refused_with_the_text_of_the_original_and_logged():
    domains, source, report = provider()
    source.files["t.badsub"] = definition(subscriptions=[expression("x >")])
    refused = refusal(domains.load, "t.badsub", 0)
    assert (refused.category, refused.code) == (Category.E_REFUSED, -10)
    assert refused.message == ("Attempt failed. Details: ConfigProvider failed to load domain config [ domain = "
                               "'t.badsub' configProviderError = 'Failed configuring domain'' ]")
    [line] = report.texts("ERROR")
    assert line.startswith("#DOMAINMANAGER_INVALID_CONFIG ")
    assert ('Expression validation failed: [ expression: [ version = E_VERSION_1 text = "x >" ], rc: -100, reason: '
            '"syntax error, unexpected end of expression at offset 2" ]') in line


def test_a_domain_with_an_invalid_first_definition_is_loaded_after_a_correction():
    domains, source, _ = provider(d=definition(subscriptions=[expression("x >")]))
    assert refusal(domains.load, "d", 0).code == -10
    source.files["d"] = definition()
    assert refusal(domains.load, "d", 1).code == -10, "the content is cached"
    assert domains.reconfigure("d", {}, 1).name == "d"
    assert domains.load("d", 1).config.subscriptions == ()


@pytest.mark.parametrize("changes, complaint", [
    ({"storage": {"config": {"inMemory": {}}, "domainLimits": limits(messagesWatermarkRatio=1.5),
                  "queueLimits": limits()}}, "'messagesWatermarkRatio' must be in range [0; 1], got: 1.5"),
    ({"storage": {"config": {"inMemory": {}}, "domainLimits": limits(messagesWatermarkRatio=-1, bytesWatermarkRatio=2),
                  "queueLimits": limits()}},
     "'messagesWatermarkRatio' must be in range [0; 1], got: -1\n"
     "'bytesWatermarkRatio' must be in range [0; 1], got: 2"),
    ({"storage": {"config": {"inMemory": {}}, "domainLimits": limits(),
                  "queueLimits": limits(bytesWatermarkRatio=1.01)}},
     "'bytesWatermarkRatio' must be in range [0; 1], got: 1.01"),
    ({"storage": {"config": {"inMemory": {}}, "domainLimits": limits(), "queueLimits": limits(messages=-1)}},
     "'messages' must not be negative, got: -1"),
    ({"subscriptions": [expression("x > 1", "E_UNDEFINED")]},
     'Unsupported version: [ expression: [ version = E_UNDEFINED text = "x > 1" ] ]'),
    ({"subscriptions": [expression("x > 1"), expression("x < 1", app_id="foo")]},
     "A priority domain has at most one subscription, found 2"),
    ({"subscriptions": [expression("x > 1", app_id="foo"), expression("x < 1", app_id="foo")],
      "mode": {"fanout": {"appIDs": ["foo"]}}}, "Two subscriptions have the same appId"),
    ({"mode": {"broadcast": {}}, "storage": {"config": {"fileBacked": {}}, "domainLimits": limits(),
                                             "queueLimits": limits()}},
     "A broadcast domain must have its storage in memory"),
    ({"mode": {"fanout": {"appIDs": ["foo", "foo"]}}}, "'appIDs' must be different from each other and not empty"),
])
def test_an_invalid_domain_definition_is_refused_with_its_cause(changes, complaint):
    domains, _, report = provider(d=definition(**changes))
    config = domains.definition("d", 0).parameters
    assert validate_definition(config) == complaint
    assert refusal(domains.load, "d", 0).code == -10


def test_the_subscription_of_a_priority_domain_applies_whatever_its_app_id():
    """As in BlazingMQ; in a fanout domain it belongs to the app of that name."""
    for mode, key in (("priority", ""), ("broadcast", ""), ({"fanout": {"appIDs": ["foo"]}}, "foo")):
        domains, _, _ = provider(d=definition(mode, "inMemory", subscriptions=[expression("x > 1", app_id="foo")]))
        config = domains.load("d", 0).config
        assert domain_settings(config, 0).conditions == {key: "x > 1"}


@pytest.mark.parametrize("changes", [
    {}, {"subscriptions": [expression("")]}, {"subscriptions": [expression("x > 1 && y == \"z\"")]},
    {"mode": {"fanout": {"appIDs": ["foo", "bar"]}}, "subscriptions": [expression("x > 1", app_id="foo"),
                                                                       expression("x < 1", app_id="bar")]},
    {"storage": {"config": {"inMemory": {}}, "domainLimits": limits(messagesWatermarkRatio=0, bytesWatermarkRatio=1),
                 "queueLimits": limits(messages=0, bytes=0)}}])
def test_a_valid_domain_definition_is_accepted(changes):
    domains, _, _ = provider(d=definition(**changes))
    assert validate_definition(domains.load("d", 0).config) == ""


def test_expressions_are_compiled_by_the_injected_function():
    seen = []
    source = MemorySource(d=definition(subscriptions=[expression("anything goes")]))
    DomainProvider(source, 0, ListReport(), seen.append).load("d", 0)
    assert seen == ["anything goes"]


def test_a_strong_broadcast_domain_becomes_eventual_with_an_alarm():
    domains, _, report = provider(t__bcs=definition("broadcast", "inMemory", consistency="strong"))
    assert not domains.load("t.bcs", 0).config.strong
    [alarm] = report.texts("ALARM")
    assert alarm.startswith("[DOMAIN] c3, t.bcs: A broadcast domain cannot be of strong consistency. Updated this "
                            "domain's consistency to eventual. ")


def test_strong_consistency_of_an_in_memory_domain_causes_a_warning():
    domains, _, report = provider(d=definition("priority", "inMemory", consistency="strong"))
    assert domains.load("d", 0).config.strong
    assert any("strong consistency" in text for text in report.texts("WARN"))


def test_delivery_attempts_above_63_are_reduced_with_a_warning():
    domains, _, report = provider(d=definition(maxDeliveryAttempts=64), e=definition(maxDeliveryAttempts=63))
    assert domains.load("d", 0).config.max_delivery_attempts == 63
    assert len(report.texts("WARN")) == 1 and "maxDeliveryAttempts is 64" in report.texts("WARN")[0]
    assert domains.load("e", 0).config.max_delivery_attempts == 63
    assert len(report.texts("WARN")) == 1


def test_a_subscription_of_an_unknown_app_causes_a_warning():
    domains, _, report = provider(d=definition({"fanout": {"appIDs": ["foo"]}},
                                               subscriptions=[expression("x > 1", app_id="fooo")]))
    domains.load("d", 0)
    assert any("appId 'fooo' is not in appIDs" in text for text in report.texts("WARN"))


# ---------------------------------------------------------------------------------------------------- reconfigure
def loaded_with_reconfigure(old, new, name="d"):
    """Return the loaded domain `old`, and a function that reconfigures it from the file `new`."""
    domains, source, report = provider()
    source.files[name] = old
    loaded = {name: domains.load(name, 0)}
    source.files[name] = new
    return loaded, lambda: domains.reconfigure(name, loaded, 0)


def error_text(call):
    with pytest.raises(LocalError) as caught:
        call()
    return str(caught.value)


def test_reconfigure_applies_every_value_that_may_change():
    loaded, call = loaded_with_reconfigure(definition({"fanout": {"appIDs": ["a"]}}),
                                           definition({"fanout": {"appIDs": ["b"]}}, maxConsumers=1, messageTtl=5,
                                                      consistency="strong", maxDeliveryAttempts=100))
    config = call().config
    assert (config.app_ids, config.max_consumers, config.message_ttl, config.strong) == (("b",), 1, 5, True)
    assert config.max_delivery_attempts == 63


def test_reconfigure_with_an_unchanged_file_returns_the_same_object():
    same = definition("broadcast", "inMemory", consistency="strong", maxDeliveryAttempts=70)
    loaded, call = loaded_with_reconfigure(same, same)
    assert call() is loaded["d"]


@pytest.mark.spec("broker", 16)
def test_reconfigure_refuses_a_change_of_mode_or_storage_with_the_text_of_the_original():
    loaded, call = loaded_with_reconfigure(definition("broadcast", "inMemory"), definition("priority", "inMemory"))
    text = error_text(call)
    assert text.startswith("error = 'Reconfiguration of domain routing mode is not allowed (was '[ broadcast =  ]', "
                           "changed to '[ priority =  ]')' config = '[ name = \"\" mode = [ priority =  ] storage = [ ")
    loaded, call = loaded_with_reconfigure(definition("priority", "fileBacked"), definition("priority", "inMemory"))
    assert error_text(call).startswith("error = 'Reconfiguration of storage type is not allowed (was '[ fileBacked =  ]', "
                                       "changed to '[ inMemory =  ])' config = '[ ")
    assert loaded["d"].config.storage.config.file_backed is not None


@pytest.mark.spec("broker", 17)
def test_reconfigure_refuses_a_watermark_ratio_above_one():
    storage = {"config": {"fileBacked": {}}, "domainLimits": limits(messagesWatermarkRatio=1.5),
               "queueLimits": limits()}
    loaded, call = loaded_with_reconfigure(definition(), definition(storage=storage))
    assert error_text(call).startswith("error = ''messagesWatermarkRatio' must be in range [0; 1], got: 1.5' config = '[ ")
    domains, _, _ = provider(x=definition(storage=storage))
    assert error_text(lambda: domains.reconfigure("x", {}, 0)) == "Domain 'x' doesn't exist"


def test_reconfigure_refuses_an_invalid_expression():
    loaded, call = loaded_with_reconfigure(definition(), definition(subscriptions=[expression("x >")]))
    assert error_text(call).startswith("error = 'Expression validation failed: [ expression: [ version = E_VERSION_1 text "
                                       "= \"x >\" ], rc: -100, reason: ")


def test_reconfigure_of_a_domain_without_a_file_is_an_error():
    domains, _, _ = provider()
    assert error_text(lambda: domains.reconfigure("x", {}, 0)) == "Domain 'x' doesn't exist"


def test_reconfigure_with_a_malformed_file_is_an_error():
    loaded, call = loaded_with_reconfigure(definition(), "{")
    assert "Error while decoding domain configuration" in error_text(call)
    loaded, call = loaded_with_reconfigure(definition(), {"redirect": "e"})
    assert "not a domain definition" in error_text(call)


def test_reconfigure_of_a_redirect_reads_its_target_again():
    domains, source, _ = provider(a={"redirect": "b"}, b=definition(maxQueues=1))
    loaded = {"b": domains.load("a", 0)}
    source.files["b"] = definition(maxQueues=2)
    assert domains.reconfigure("a", loaded, 0) == LoadedDomain("b", "c3", domains.definition("b", 0).parameters)
    assert domains.definition("b", 0).parameters.max_queues == 2


def test_reconfigure_does_not_move_a_domain_to_another_cluster():
    loaded, call = loaded_with_reconfigure(definition(location="c3"), definition(location="c4", maxQueues=1))
    assert call().cluster == "c3"


# ---------------------------------------------------------------------------------------------------- proxy clusters
def test_a_proxy_cluster_may_be_defined_in_its_own_file():
    domains, source, _ = provider()
    source.proxies["east"] = {"name": "east", "nodes": [
        {"id": 1, "name": "e1", "transport": {"tcp": {"endpoint": "tcp://e1:1"}}}]}
    assert domains.proxy_cluster("east").nodes[0].name == "e1"


def test_an_unknown_cluster_is_refused_with_the_text_of_the_original():
    domains, source, _ = provider()
    refused = refusal(domains.proxy_cluster, "nowhere")
    assert (refused.category, refused.code) == (Category.E_REFUSED, -10)
    assert refused.message == (
        "Fetch proxy definition failed for cluster: 'nowhere', file: 'etc/proxyclusters/nowhere.json' is not readable "
        "or empty. Details: cluster = nowhere status = [ category = E_REFUSED code = -10 message = \"Fetch proxy "
        "definition failed for cluster: 'nowhere', file: 'etc/proxyclusters/nowhere.json' is not readable or empty\" ]")
    source.proxies["bad"] = "{}"
    assert refusal(domains.proxy_cluster, "bad").code == -10


# -------------------------------------------------------------------------------------------------------- on disk
def test_the_domain_reader_reads_the_present_files(tmp_path):
    (tmp_path / "domains").mkdir()
    reader = DomainReader(str(tmp_path))
    assert reader.read("d") == DomainFile(f"{tmp_path}/domains/d.json", None, missing=True)
    (tmp_path / "domains" / "d.json").write_text(json.dumps(definition()))
    assert json.loads(reader.read("d").text) == definition()
    assert reader.names() == ["d"] and reader.stamp() > 0
    (tmp_path / "domains" / "e.json").mkdir()
    assert reader.read("e").text is None and not reader.read("e").missing
    assert reader.read_proxy_cluster("c").missing
    assert DomainReader(str(tmp_path / "gone")).stamp() == 0


def test_the_check_of_a_domain_file_returns_problems_and_warnings():
    def finding_paths(data):
        problems, warnings = [], []
        text = data if isinstance(data, str) else json.dumps(data)
        check_domain_text(DomainFile("f", text), problems, warnings)
        return [each.path for each in problems], [each.path for each in warnings]

    assert finding_paths(definition()) == ([], [])
    assert finding_paths("{") == ([""], [])
    assert finding_paths({"redirect": "x"}) == ([], [])
    assert finding_paths(definition("broadcast")) == (["definition.parameters"], [])
    assert finding_paths(definition("broadcast", "inMemory", consistency="strong", maxDeliveryAttempts=64)) == (
        [], ["definition.parameters.consistency", "definition.parameters.maxDeliveryAttempts"])


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_a_name_that_is_invalid_in_the_file_system_is_a_missing_file(tmp_path, name):
    reader = DomainReader(str(tmp_path))
    assert reader.read(name).missing and reader.read_proxy_cluster(name).missing


def test_hidden_files_of_editors_and_file_systems_are_no_domains(tmp_path):
    directory = tmp_path / "domains"
    directory.mkdir()
    for name in ("a.json", "._a.json", ".#a.json", "b.txt"):
        (directory / name).write_text("{}")
    assert DomainReader(str(tmp_path)).names() == ["a"]
