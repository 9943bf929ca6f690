"""Whole brokers in one process on a virtual clock: network, disks and clients are drawn from one seed.

    world.py     one broker with the clients of a scenario around it
    clients.py   producers and consumers as official SDKs behave, without ever waiting
    judge.py     what clients saw, and what they never may see
    mistakes.py  exceptions that are planted into the broker itself
    scenario.py  one seed: who takes part, what happens when, and the verdict
    cluster.py   several nodes in one network, and clients that are told what to do
    elected.py   several nodes that elect a leader and replicate their metadata
    campaign/    everything that goes wrong with those at random, with judges for each invariant
    peers.py     a test double for the part of a node that speaks with the other nodes

The simulation itself is `bmqtwist.testing`: `simulation.py`, `network.py`, `simulated_node.py`.
"""
