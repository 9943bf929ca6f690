"""`bmq shell`: the commands of the original's bmqtool, and its automatic producer and consumer.

| module | what it answers |
|---|---|
| `commands` | a line: what each verb takes, with which defaults |
| `printing` | how commands, results, events and messages are written |
| `throughput` | what is measured |
| `settings` | options and profiles |
| `posting` | what is posted, and when |
| `console` | where commands come from, and where records go: standard output and the log file |
| `interactive`, `auto` | the modes |
| `command` | the command line |
"""
