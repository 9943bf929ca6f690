"""`bmq shell`: the commands of the original's bmqtool, and its automatic producer and consumer.

| module | what it answers |
|---|---|
| `grammar` | a line: verb and members |
| `commands` | what each verb takes, with which defaults |
| `printing` | how commands, results, events and messages are written |
| `dumpfile` | a message in the dump file of a broker |
| `latency`, `throughput` | what is measured |
| `settings` | options and profiles |
| `posting` | what is posted, and when |
| `console` | records on standard output and in the log file |
| `lines` | where commands come from: a terminal, a pipe, a file |
| `interactive`, `auto`, `modes` | the modes |
| `command` | the command line |

All down to `settings` are pure.
"""
