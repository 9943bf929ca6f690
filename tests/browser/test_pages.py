"""Pages against scripted documents: displayed values, filters, dialogs and actions.

The documents are in `scripted.py`; pages of real nodes are tested in `test_real_nodes.py`, tools in `test_tools.py`.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from browser.chromium import Chromium, Tab
from browser.conftest import FakeCluster
from browser.scripted import MANY_QUEUES

Clusters = Callable[..., FakeCluster]


def document(url: str) -> Any:
    """Return a JSON document of the fake console."""
    return json.load(urllib.request.urlopen(url, timeout=20))


def test_the_overview_shows_health_rates_nodes_queues_and_events(tab: Tab, scenes: Clusters) -> None:
    cluster = scenes("good")
    tab.visit(f"{cluster.url}/")
    tab.until_text("#summary", "All is well: 3 of 3 nodes are up")
    tab.until_text("[data-tile=put]", "/s")
    assert tab.texts("[data-tile=p99] .value") == ["18.4 ms"]
    assert tab.texts("[data-tile=leader] .value") == ["n1"]
    assert tab.texts("#nodes tbody th") == ["n1", "n2", "n3"]
    tab.until_text("#top tbody th", "bmq://bmq.test/queue-1")
    assert tab.texts("#top tbody tr:first-child td")[0] == "91,000"
    assert "n3 is up" in " ".join(tab.texts("#events .event-text"))
    assert tab.problems() == []


def test_the_overview_sorts_the_top_queues_and_stores_the_sort_order_in_the_url(
    tab: Tab, scenes: Clusters
) -> None:
    tab.visit(f"{scenes('good').url}/")
    tab.click("#top-choice [data-value=quota]")
    tab.until("() => location.search === '?top=quota'")
    tab.until_text("#top tbody th", "queue-1")
    tab.visit(f"{scenes('good').url}/?top=oldestSeconds")
    assert tab.texts("#top-choice [aria-pressed=true]") == ["Age"]


def test_a_page_shows_changes_of_the_cluster_without_a_reload(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("good")
    tab.visit(f"{cluster.url}/")
    tab.evaluate("() => { window.same = true; }")
    cluster.nodes[0].control(scene="bad")
    tab.until_text("#summary", "Partition 1 has no primary")
    tab.until_text("#health", "Partition 1 has no primary")
    tab.until_text("#alarms", "partition 1 has no primary since 40 s")
    assert tab.evaluate("() => window.same") is True


def test_empty_pages_show_a_placeholder(tab: Tab, scenes: Clusters) -> None:
    cluster = scenes("empty")
    for path, text in (
        ("/", "No queues."),
        ("/partitions", "No known partitions."),
        ("/queues", "No queues."),
        ("/alarms", "No open alarms."),
        ("/audit", "No recorded actions."),
        ("/clients", "No connected clients match."),
        ("/elections", "No known terms"),
    ):
        tab.visit(cluster.url + path)
        tab.until_text("main", text)


def test_partitions_show_each_replica_and_its_lag(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('warning').url}/partitions")
    rows = tab.texts("#grid tbody tr")
    assert rows[0].startswith("Partition 0●activen1") and "▲replica12 records, 11.3 KiB behindlag 1.8 s" in rows[0]
    assert "●replica3 records, 2.8 KiB behindlag 450 ms" in rows[0], "a lag below one second is normal"
    assert "▲healing48,210 records" in rows[3] and "lag 2 h 0 min" in rows[3]
    assert "70 % of 95.4 MiB" in rows[1] and "in synclag 0 ms" in rows[1]


def test_a_primary_is_moved_with_a_reason(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("good")
    tab.visit(f"{cluster.url}/partitions")
    tab.click("[aria-label='Move the primary of partition 0']")
    tab.click("dialog button[type=submit]")
    assert tab.texts("dialog .field-error:not([hidden])") == ["This field is required."]
    tab.selectOption("dialog select", "n3")
    tab.fill("dialog input[aria-required]", "n1 is slow")
    tab.keyboard.press("Enter")
    tab.until("() => !document.querySelector('dialog')")
    tab.until("() => document.querySelector('#grid tbody tr').children[2].textContent.startsWith('n3')")
    entry = document(f"{cluster.url}/api/v1/audit")["entries"][0]
    assert (entry["action"], entry["target"], entry["reason"]) == ("partitions/0/move", "0", "n1 is slow")


def test_the_server_sorts_filters_and_pages_queues(tab: Tab, scenes: Clusters) -> None:
    cluster = scenes("many")
    tab.visit(f"{cluster.url}/queues")
    tab.until_text("#total", f"{MANY_QUEUES:,} queues")
    assert tab.evaluate("() => document.querySelectorAll('#list tbody tr').length") < 120
    wanted = document_rows(cluster, "messages", "desc")
    assert tab.texts("#list tbody th")[:5] == wanted[:5]
    tab.click("[data-sort=uri]")
    tab.until_text("#list tbody th", "bmq://bmq.test/queue-0")
    tab.until("() => location.search === '?sort=uri&order=asc'")
    tab.fill("#filter", "queue-4999")
    tab.until_text("#total", "11 queues matching “queue-4999”")
    tab.visit(tab.evaluate("() => location.href"))
    tab.until_text("#total", "11 queues matching “queue-4999”")
    assert tab.inputValue("#filter") == "queue-4999"
    tab.fill("#filter", "no such queue")
    tab.until_text("#list .empty-state:not([hidden])", "No queues match “no such queue”")


def document_rows(cluster: FakeCluster, sort: str, order: str) -> list[str]:
    """Return the URIs of queues in the order of the scripted cluster."""
    from browser.scripted import Script

    return [row["uri"] for row in Script("many", "n1", cluster.urls, 0).queues(0, sort=sort, order=order)["rows"]]


def test_a_list_of_fifty_thousand_queues_scrolls_to_its_end(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('many').url}/queues?sort=uri&order=asc")
    tab.until_text("#list tbody th", "queue-0")
    tab.evaluate("() => { const frame = document.querySelector('#list .scroll'); frame.scrollTop = frame.scrollHeight; }")
    tab.until_text("#list tbody th", "bmq://bmq.test/queue-9999")
    assert tab.evaluate("() => document.querySelectorAll('#list tbody tr').length") < 120
    tab.until("() => Number(new URLSearchParams(location.search).get('offset')) > 49900")
    tab.visit(tab.evaluate("() => location.href"))
    tab.until_text("#list tbody th", "bmq://bmq.test/queue-9999")
    seen = tab.evaluate(
        "() => { const frame = document.querySelector('#list .scroll').getBoundingClientRect();"
        " return [...document.querySelectorAll('#list tbody th')].some((one) => {"
        " const box = one.getBoundingClientRect(); return box.top > frame.top && box.bottom < frame.bottom; }); }"
    )
    assert seen, "the last rows are in the page, but not visible"


def test_a_row_keeps_the_focus_while_its_values_change(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('good').url}/queues")
    tab.until_text("#list tbody th", "queue-1")
    tab.focus("#list tbody a")
    tab.evaluate(
        "() => { window.focused = document.activeElement; window.seen = 0;"
        " new MutationObserver(() => { window.seen += 1; }).observe(document.querySelector('#clock'), {childList: true}); }"
    )
    tab.until("() => window.seen >= 2")
    assert tab.evaluate("() => document.activeElement === window.focused")


def test_the_queue_page_shows_consumers_subscriptions_tree_and_messages(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('good').url}/queue?uri=bmq%3A%2F%2Fbmq.test%2Fqueue-1")
    tab.until_text("[data-tile=messages]", "91,000")
    tab.until_text("#consumers", "■stuck")
    tab.until_text("#tree", "replica n2")
    assert "1,000 of 1,000" in tab.texts("#consumers tbody tr")[0]
    (row,) = tab.texts("#subscriptions tbody tr")
    assert row.startswith('price > 100 && firm == "ABC"91,25096/s1,000▲fullbilling')
    tab.until_text("#messages", "50 messages of 120, from the primary.")
    tab.click("#messages tbody button")
    tab.until_text("dialog", '"price": 101.5')
    assert tab.texts("dialog pre.hex")[0].startswith("000000 7b 22 6f 72 64 65 72")
    tab.keyboard.press("Escape")
    tab.until("() => !document.querySelector('dialog')")
    tab.click("text=Next page")
    tab.until_text("#messages tbody th", f"{51:032X}")
    tab.fill("#messages input[type=search]", "nothing")
    tab.click("#messages form button")
    assert tab.texts("#messages .field-error:not([hidden])") == ["A GUID has 32 digits 0-9 and A-F."]
    tab.fill("#messages input[type=search]", f"{7:032X}")
    tab.click("#messages form button")
    tab.until("() => document.querySelectorAll('#messages tbody tr').length === 1")
    assert tab.problems() == []


def test_the_page_of_an_unknown_queue_shows_an_error(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('good').url}/queue?uri=bmq%3A%2F%2Fbmq.test%2Fnone")
    tab.until_text("#facts", "There is no such queue.")


def test_the_tools_of_a_queue_publish_messages_test_a_subscription_and_purge(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("good")
    uri = "bmq://bmq.test/queue-2"
    tab.visit(f"{cluster.url}/queue?uri={uri}")
    tab.click("text=Publish test messages")
    tab.fill("dialog textarea >> nth=0", "hello")
    tab.fill("dialog textarea >> nth=1", "price:int32=12\nfirm=ABC\nbroken")
    tab.click("dialog button[type=submit]")
    tab.until_text("dialog .field-error", "Line 3 must be name=value or name:type=value.")
    tab.fill("dialog textarea >> nth=1", "price:int32=12\nfirm=ABC")
    tab.fill("dialog input[type=number]", "3")
    tab.click("dialog button[type=submit]")
    tab.until_text("#toasts", "3 messages acknowledged.")
    tab.click("text=Test subscription")
    tab.fill("dialog textarea >> nth=0", "price = 3")
    tab.click("dialog button[type=submit]")
    tab.until_text("dialog mark", "=")
    tab.until_text("dialog .field-error", "did you mean ==?")
    tab.fill("dialog textarea >> nth=0", "price == 3")
    tab.click("dialog button[type=submit]")
    tab.until_text("dialog caption", "2 matches of 4 messages")
    tab.keyboard.press("Escape")
    tab.click("text=Purge")
    tab.fill("dialog input >> nth=1", "end of the test")
    tab.fill("dialog input >> nth=2", "bmq://bmq.test/queue-3")
    tab.click("dialog button[type=submit]")
    tab.until_text("dialog .field-error", f"Enter exactly: {uri}")
    tab.fill("dialog input >> nth=2", uri)
    tab.click("dialog button[type=submit]")
    tab.until_text("#toasts", "1,234 messages (96.7 KiB) purged.")
    tab.until_text("#messages .empty", "No stored messages.")


def test_a_graceful_stop_shows_preflight_confirmation_progress_and_report(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("good")
    tab.visit(f"{cluster.url}/nodes")
    tab.click("[aria-label='Stop gracefully: n3']")
    tab.until_text("dialog", "Quorum is kept: the cluster stays available.")
    tab.until_text("dialog", "1 primary moves: partition 0 to n2.")
    tab.fill("dialog input >> nth=0", "new kernel")
    tab.fill("dialog input[type=number]", "0")
    tab.fill("dialog input[aria-required] >> nth=1", "n2")
    tab.click("dialog button[type=submit]")
    assert tab.texts("dialog .field-error:not([hidden])") == ["Enter exactly: n3"]
    tab.fill("dialog input[aria-required] >> nth=1", "n3")
    tab.click("dialog button[type=submit]")
    tab.until("() => location.pathname === '/node' && location.search === '?name=n3'")
    tab.until_text("#stop", "stopping:")
    tab.until_text("#stop", "messages unconfirmed")
    tab.until_text("#stop-report", "Clients still connected at the end1")
    tab.until_text("#stop-report", "partition 0 to n2")
    assert tab.evaluate("() => { const bar = document.querySelector('progress'); return bar.value === bar.max; }")
    assert document(f"{cluster.url}/api/v1/audit")["entries"][0]["reason"] == "new kernel"


def test_the_node_page_filters_the_log_by_level(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('good').url}/node?name=n2")
    tab.until_text("#facts", "Primary for")
    tab.until_text(".log", "n3 missed 3 heartbeats")
    assert "one turn took" not in tab.texts(".log")[0]
    tab.selectOption("#log-tools select", "DEBUG")
    tab.until_text(".log", "one turn took 12 ms")
    tab.until("() => location.search === '?name=n2&level=DEBUG'")
    tab.visit(f"{scenes('good').url}/node?name=n9")
    tab.until_text("#tiles", "The cluster has no node named “n9”.")


def test_the_node_page_compares_the_configuration_with_other_nodes(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('good').url}/node?name=n1")
    tab.click("text=Compare with other nodes")
    tab.until_text("#config caption", "2 settings differ between n1, n2, n3")
    assert tab.texts("#config tbody th") == ["brokerConfig.hostName", "brokerConfig.limits.memoryBytes"]
    tab.click("text=Show full configuration")
    tab.until_text("#config tbody tr", "brokerConfig.listeners.clients.port")


def test_alarms_are_acknowledged_and_cleared(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("warning", "--user=ada", "--role=operator")
    tab.visit(f"{cluster.url}/alarms")
    tab.until_text("#past", "partition 2 was behind")
    assert tab.texts("#alarm-count") == ["1"]
    tab.click("#open .actions button")
    tab.until_text("#open", "No open alarms.")
    tab.until_text("#past", "uses 91 % of its quota")
    tab.click("#past .actions button")
    tab.until("() => document.querySelectorAll('#past .actions button').length === 0")
    tab.visit(f"{cluster.url}/audit")
    tab.until_text("#list tbody tr", "alarms/n1:1/acknowledge")


def test_the_id_of_an_alarm_shows_its_meaning_effect_and_remedy(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('warning').url}/alarms")
    tab.click("text=capacity-state-high-watermark")
    tab.until_text("dialog h2", "Alarm capacity-state-high-watermark")
    tab.until_text("dialog dd", "Check the consumers of the queue.")
    assert "domainLimits" in tab.texts("dialog dd code")
    assert tab.axe() == []
    assert tab.problems() == []


def test_an_operator_raises_an_alarm(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("warning", "--user=ada", "--role=operator")
    tab.visit(f"{cluster.url}/alarms")
    tab.click("#raise button")
    tab.click("dialog button[type=submit]")
    assert tab.texts("dialog .field-error:not([hidden])") == ["This field is required."]
    assert tab.axe() == []
    tab.fill("dialog textarea", "<b>Rack 7</b> burns")
    tab.selectOption("dialog select >> nth=0", "PANIC")
    tab.selectOption("dialog select >> nth=1", "n2")
    tab.focus("dialog button[type=submit]")
    tab.keyboard.press("Enter")
    tab.until_text("#open tbody tr", "PANIC OPERATOR<b>Rack 7</b> burnsn2")
    assert tab.problems() == []


def test_elections_show_the_leader_and_topology_shows_replication(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('good').url}/elections")
    tab.until_text("#leader", "n1 is the leader in term 7")
    tab.until_text("#terms tbody tr", "n3 missed 5 heartbeats")
    assert [row.split("●")[0][:1] for row in tab.texts("#terms tbody th")] == ["7", "6", "5"]
    tab.visit(f"{scenes('warning').url}/topology")
    tab.until_text("#edges tbody tr", "healing")
    assert sorted(word for row in tab.texts("#edges tbody tr") for word in ("in sync", "lagging", "healing")
                  if word in row) == ["healing"] + ["in sync"] * 4 + ["lagging"] * 3
    assert tab.evaluate("() => document.querySelectorAll('.graph g:not(.proxy) > rect').length") == 3
    assert tab.evaluate("() => document.querySelectorAll('.graph .edge:not(.proxy)').length") == 6


def test_topology_shows_proxies_with_their_connections_and_rates(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('good').url}/topology")
    tab.until_text(".graph g.proxy text", "proxy edge")
    assert tab.evaluate("() => document.querySelectorAll('.graph g.proxy > rect').length") == 2
    assert tab.evaluate("() => document.querySelectorAll('.graph .edge.proxy').length") == 5
    assert tab.evaluate("() => document.querySelectorAll('.graph .edge.proxy.idle').length") == 3
    assert tab.evaluate("() => document.querySelectorAll('.graph .edge.proxy[data-level=warning]').length") == 2
    rows = tab.texts("#links tbody tr")
    assert len(rows) == 5
    for words in ("p1", "10.0.1.0", "80/s", "70.3 KiB/s", "130", "http://10.0.1.0:8080"):
        assert any(words in row for row in rows), words
    assert sum("backpressure" in row and "20 MiB" in row for row in rows) == 2


def test_the_queue_page_shows_consumers_connected_to_a_proxy(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('good').url}/queue?uri=bmq%3A%2F%2Fbmq.test%2Fqueue-1")
    tab.until_text("#consumers tbody tr", "proxy p1")
    assert tab.texts("#consumers .missing") == ["Clients of edge are not shown: it has no console."]
    # the node has a page, the proxy has none
    assert tab.evaluate("() => document.querySelectorAll('#consumers tbody a:not([hidden])').length") == 1
    branch = "#tree .tree > li > ul > li > ul > li"
    assert tab.texts(f"{branch} > .tag") + tab.texts(f"{branch} > strong") == ["proxy", "p1"]
    assert tab.texts(f"{branch} > ul > li > .tag") == ["client"]


def test_clients_are_found_by_name_and_address(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('good').url}/clients?filter=orders-7")
    tab.until_text("#total", "1 client")
    assert tab.texts("#list tbody th") == ["orders-7"]
    tab.until_text("#list tbody tr", "proxy p1")
    tab.until_text("#list .missing", "Clients of edge are not shown: it has no console.")


def test_actions_that_the_role_does_not_permit_are_disabled_with_the_reason(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('good', '--role=viewer', '--user=eve').url}/partitions")
    tab.until_text("#grid tbody", "Move")
    assert tab.getAttribute("#grid button", "aria-disabled") == "true"
    assert tab.getAttribute("#grid button", "aria-description") == "Requires the role operator; your role is viewer."
    tab.click("#grid button", {"force": True})
    tab.until_text("#toasts", "Requires the role operator; your role is viewer.")
    assert not tab.texts("dialog")


def test_a_dialog_shows_the_refusal_of_an_action_with_a_wrong_csrf_token(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('good').url}/partitions")
    tab.evaluate("() => { document.querySelector('meta[name=csrf]').content = 'guessed'; }")
    tab.click("#grid button")
    tab.fill("dialog input[aria-required]", "because")
    tab.click("dialog button[type=submit]")
    tab.until_text("dialog .problem", "The token of the session is missing.")


def test_a_chart_has_a_table_of_its_values_and_a_keyboard_cursor(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('good').url}/")
    tab.click("#rates summary")
    tab.until("() => document.querySelectorAll('#rates tbody tr').length === 180")
    assert tab.texts("#rates thead th") == ["Time", "posted", "acknowledged", "delivered", "confirmed"]
    tab.focus("#rates .plot")
    tab.keyboard.press("Home")
    assert tab.texts("#rates .when") != ["now"]


def test_times_are_shown_in_local_time_or_utc(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('good').url}/")
    tab.until_text("#clock", "local")
    local = tab.texts("#events time")[0]
    tab.selectOption("#zone", "utc")
    tab.until_text("#events time", "UTC")
    hours = [int(text.split()[-2 if "UTC" in text else -1].split(":")[0]) for text in (local, tab.texts("#events time")[0])]
    offset = (hours[0] - hours[1]) % 24
    assert offset == (2 if time.localtime().tm_isdst > 0 else offset) and offset in (1, 2)
    assert "local" in tab.getAttribute("#events time", "title") and "UTC" in tab.getAttribute("#events time", "title")


def test_the_login_page_shows_the_reason_of_a_failed_login(tab: Tab, scenes: Clusters) -> None:
    tab.goto(f"{scenes('good').url}/login")
    tab.fill("#user", "ada")
    tab.fill("#password", "guess")
    tab.keyboard.press("Enter")
    tab.until_text(".problem", "The name or the password is wrong.")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_selected_theme_applies_to_all_pages(chromium: Chromium, scenes: Clusters, theme: str) -> None:
    tab = chromium.open(colorScheme="dark" if theme == "light" else "light")
    try:
        tab.visit(f"{scenes('good').url}/")
        before = tab.evaluate("() => getComputedStyle(document.body).color")
        tab.selectOption("#theme", theme)
        tab.visit(f"{scenes('good').url}/nodes")
        assert tab.evaluate("() => document.documentElement.dataset.theme") == theme
        assert tab.evaluate("() => getComputedStyle(document.body).color") != before
    finally:
        tab.end()


def test_pages_with_dead_nodes_show_unknown_values_and_copies_and_no_zeros(tab: Tab, scenes: Clusters) -> None:
    url = scenes("lost").url
    tab.visit(f"{url}/")
    (notice,) = tab.texts(".notice[role=status]:not([hidden])")
    assert "n2 has not answered since" in notice and "n3 has not answered yet" in notice
    assert tab.texts("[data-tile=messages] .value") == ["5,000"]
    (posted, *_) = tab.evaluate(
        "() => [...document.querySelectorAll('#rates path.line')].map((one) => one.getAttribute('d'))")
    assert posted.count("M") == 3, "the line is interrupted where a value or a row is missing"
    tab.until_text("#alarms .empty", "The alarms of n3 are unknown. n2 had none at")
    rows = tab.texts("#nodes tbody tr")
    assert "down last answer" in rows[1] and "last answer" not in rows[2]
    tab.visit(f"{url}/queues")
    tab.until_text("#total", "40 queues; values from copies at n1: their primary does not answer. Rates are means of 5 s.")
    assert "–" in tab.texts("#list tbody tr:not(.spacer)")[0]
    tab.visit(f"{url}/alarms")
    tab.until_text("#open .empty", "The alarms of n3 are unknown.")
    assert tab.problems() == []


def test_tile_and_legend_show_the_same_rate_at_each_moment(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('good').url}/")
    different = tab.evaluate("""async () => {
        const names = ["put", "ack", "push", "confirm"], found = [];
        for (let n = 0; n < 30; n += 1) {
            const tiles = names.map((name) => document.querySelector(`[data-tile=${name}] .value`).textContent);
            const legend = [...document.querySelectorAll("#rates .legend .value")].map((one) => one.textContent);
            if (tiles.join() !== legend.join()) found.push([tiles, legend]);
            await new Promise((resolve) => setTimeout(resolve, 50));
        }
        return found;
    }""")
    assert different == []


@pytest.mark.parametrize("page, table", [("partitions", "#grid"), ("nodes", "#list")])
def test_the_actions_of_a_row_are_in_view_at_1440_pixels(chromium: Chromium, scenes: Clusters, page: str,
                                                         table: str) -> None:
    tab = chromium.open(1440, 900)
    try:
        tab.visit(f"{scenes('warning').url}/{page}")
        right, left, edge = tab.evaluate("""(table) => {
            const [button, frame] = [`${table} td.actions button:last-child`, `${table} .scroll`].map((each) =>
                document.querySelector(each).getBoundingClientRect());
            return [button.right, button.left, frame.right];
        }""", table)
        assert 0 < left < right <= edge <= 1440
    finally:
        tab.end()


def test_a_payload_that_is_cut_is_not_called_invalid_json(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("good")
    cluster.nodes[0].control(truncated=True)
    tab.visit(f"{cluster.url}/queue?uri=bmq://bmq.test/queue-1")
    tab.click("#messages tbody button")
    tab.until_text("dialog [aria-label='Payload as JSON']", "incomplete: download the payload")
    tab.keyboard.press("Escape")
    tab.fill("#messages input[type=datetime-local]", "2040-01-01T00:00")


def requests_of_the_log(cluster: FakeCluster) -> int:
    """Return the number of requests of the log that a fake console has received."""
    with urllib.request.urlopen(f"{cluster.url}/api/v1/requests", timeout=20) as answer:
        return int(json.loads(answer.read())["log"])


def test_the_page_of_a_node_that_is_down_asks_for_nothing_and_stops_nothing(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("lost")
    tab.visit(f"{cluster.url}/node?name=n2")
    tab.until("() => document.querySelector('#actions button').disabled")
    tab.until_text(".problem", "The console of this node does not respond")
    first = requests_of_the_log(cluster)
    time.sleep(4)  # longer than the interval of the log
    assert requests_of_the_log(cluster) == first


def test_an_invalid_file_of_a_domain_is_not_called_equal_to_its_configuration(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('bad').url}/domains?name=bmq.test")
    tab.until_text("#domain-state", "The file of n1 is invalid and not active: line 3: expected a number")
    assert "equals" not in tab.texts("#domain-state")[0]


def test_a_change_of_all_files_of_a_domain_is_listed_once(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('warning').url}/domains?name=bmq.test")
    tab.until_text("#domain-differences", "messageTtl")
    tab.click("text=Reconfigure")
    assert tab.texts("dialog tbody tr") == ["messageTtlall 3360060"]
    box, dialog = tab.evaluate("""() => ["dialog .scroll", "dialog"].map((each) => {
        const element = document.querySelector(each);
        return element.scrollWidth - element.clientWidth;
    })""")
    assert box <= 0 and dialog <= 0, "no value is cut off"
