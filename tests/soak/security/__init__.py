"""Campaign `security`: attacks of peers, clients, proxies and viewers on broker processes, one module per attack.

`campaign.py` runs them and has the command line; `target.py` has the attacked brokers and the reference producer.
"""
