"""Campaigns: random faults in simulated clusters, with judges that check invariants after every event.

    schedule.py   a schedule of faults as data: drawn from a seed, stored as JSON, replayed, shrunk
    actions.py    the faults and requests of a schedule: processes, network, disks, elections, metadata, partitions
    operator_mistakes.py  wrong lists of nodes, swapped directories, a second cluster of the same name
    membership.py members that are added, removed and replaced; cancelled changes, removed nodes that return
    copies.py     old copies of storage, and invariant M8
    releases.py   members of the previous release, upgrades, rollbacks, and invariant V1
    world.py      a simulated cluster whose state machines report each step to the judges
    judges.py     interface of a judge, and `Violation`
    elections.py  invariants E1-E6
    metadata.py   invariants M1-M7, M9 and A1-A4
    partitions.py invariants A5-A9 and R1-R12, and L2
    messages.py   invariants D1-D10
    relays.py     invariants P1 and P2
    clients.py    producers and consumers, at members and at proxies
    liveness.py   invariants L3 and L5: a broken minority
    play.py       runs one schedule, ends all faults, and checks the final state (L1, L4)
    shrink.py     reduces a failed schedule to its smallest part that still fails
    canaries.py   deliberate defects; each must be detected by a campaign
    endurance.py  hours of faults; each period ends with the same resource usage as before

The names of invariants are those of the specification (`cluster.md`, section "Invariants"). `python -m sim.campaign --help`
runs a campaign (`make sim`). A new part of the cluster joins with a table of actions in `actions.ACTIONS` and a judge in
`play.JUDGES`.
"""
