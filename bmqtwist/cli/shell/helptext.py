"""What `help` says."""

HELP = """Commands, with what may be left out in parentheses:

  start (async=true)
  stop (async=true)
  open uri="" flags="read,write,ack" (async=true) (maxUnconfirmedMessages=1024) (maxUnconfirmedBytes=33554432)
       (consumerPriority=0) (subscriptions=[{"expression": "x > 0", "correlationId": 1, "maxUnconfirmedMessages": 1,
       "maxUnconfirmedBytes": 1, "consumerPriority": 0}])
  configure uri="" and what open takes, but flags
  close uri="" (async=true)
  post uri="" payload=["", ""] (compressionAlgorithmType="ZLIB")
       (messageProperties=[{"name": "", "value": "", "type": "E_STRING"}]); types: E_STRING, E_INT (32 bits), E_BOOL,
       E_CHAR, E_SHORT, E_INT32, E_INT64, E_BINARY
  batch-post uri="" (payload=["", ""] or msgSize=1024) (eventSize=1) (eventsCount=0) (postInterval=1000) (postRate=1)
       (autoIncremented="name"): postRate events every postInterval ms, eventSize messages each; eventsCount 0: until
       Ctrl-C
  load-post uri="" file="": the message of a broker's dump file
  list (uri=""): messages that are not confirmed
  confirm uri="" guid="": "*" all, "+3" the three oldest, "-3" the three latest, or a GUID
  wait (uri="") (messages=1) (timeout=10): until so many messages are listed
  help
  bye, also quit, exit, q; or Ctrl-D

Only posts to queues opened with the flag ack are acknowledged. A line that begins with # is a comment.

  start
  open uri="bmq://bmq.test.persistent.priority/qqq" flags="read,write,ack"
  post uri="bmq://bmq.test.persistent.priority/qqq" payload=["hello"]
  list
  confirm uri="bmq://bmq.test.persistent.priority/qqq" guid="*"
"""
