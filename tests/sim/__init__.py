"""A whole broker in one process on a virtual clock: its network, its disk and its clients are drawn from one seed.

    world.py     the broker, its connections and its disk, and what goes wrong with them
    clients.py   producers and consumers as official SDKs behave, without ever waiting
    judge.py     what clients saw, and what they never may see
    mistakes.py  exceptions that are planted into the broker itself
    scenario.py  one seed: who takes part, what happens when, and the verdict
"""
