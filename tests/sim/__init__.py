"""Simulated brokers in one process: network, disks and clocks are drawn from one seed.

    world.py     one broker with its configuration
    scenario.py  the scenario of a seed: clients, faults, and the check of the outcome
    clients.py   event-driven producers and consumers of scenarios
    judge.py     guarantees that a scenario checks from the clients' view
    mistakes.py  defects that are injected into the broker of a scenario
    chain_scenario.py  the scenario of a member and a chain of proxies
    cluster.py   several nodes in one network, with clients of the wire protocol
    elected.py   a cluster with elections and replicated metadata; replicated.py with replicated partitions
    faults.py    the fault table of the specification, with clients of the client library
    campaign/    campaigns of random faults in clusters, with a judge for each group of invariants
    peers.py     test double of the part of a node that communicates with other nodes
    upstreams.py scripted node as the upstream broker of a proxy

The simulation itself is in `bmqtwist.testing`: `simulation.py`, `network.py`, `simulated_node.py`.
"""
