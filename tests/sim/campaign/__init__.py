"""Random campaigns over simulated clusters: everything goes wrong that can, and judges look on after every event.

    schedule.py   what happens when, as data: drawn from a seed, written as JSON, played again, shrunk
    actions.py    what may happen: to processes, the network, disks, elections, metadata
    world.py      a cluster of whole nodes in one network whose machines are watched from outside
    judges.py     the judge's interface; a violation
    elections.py  E1-E5, metadata.py  M1-M6 and A1-A4 of the specification's invariants
    partitions.py A5-A9, R1-R10, messages.py  D1-D10, relays.py  P1 and P2
    clients.py    producers and consumers, at nodes and behind proxies
    play.py       one schedule from its first step to the quiet end
    shrink.py     the smallest part of a schedule that still fails
    canaries.py   mistakes that are planted into the code, each of which a campaign has to find

`python -m sim.campaign --help` runs one (`make sim`). What a new part of the cluster needs to join: a table of actions in
`actions.ACTIONS`, and a judge in `play.JUDGES`.
"""
