"""The table of a partition's machine: what is done in every role at every event, by the name of a method."""

from __future__ import annotations

from bmqtwist.cluster.partition_events import PartitionEvent, PartitionRole

# What is done with which event in which role: names of methods of `PartitionMachine`.
_COLUMNS = (PartitionRole.UNKNOWN, PartitionRole.PRIMARY_HEALING_STG1, PartitionRole.PRIMARY_HEALING_STG2,
            PartitionRole.PRIMARY_HEALED, PartitionRole.REPLICA_WAITING, PartitionRole.REPLICA_HEALING,
            PartitionRole.REPLICA_HEALED, PartitionRole.STOPPED)
_ROWS = {
    #                     UNKNOWN     STG1          STG2         HEALED       WAITING     HEALING       HEALED
    "ASSIGNED_SELF": "_appointed  _appointed    _appointed   _appointed   _appointed  _appointed    _appointed",
    "ASSIGNED_OTHER": "_follow     _follow       _follow      _follow      _follow     _follow       _follow",
    "PEER_UP":       "_met        _met_leading  _met_leading _met_leading _met        _met          _met",
    "PEER_DOWN":     "_left       _lost         _lost        _lost        _left       _left         _left",
    "PROMISED":      "_promised   _promised     _promised    _promised    _promised   _promised     _promised",
    "LOG_MOVED":     "_ignore     _looked       _grown       _grown       _ignore     _followed     _followed",
    "LOG_READY":     "_ignore     _choose       _ready       _grown       _ignore     _replaced     _replaced",
    "LOG_FAILED":    "_failed     _failed       _failed      _failed      _failed     _failed       _failed",
    "FED":           "_ignore     _ignore       _on_fed      _on_fed      _ignore     _on_fed       _on_fed",
    "IMAGE_LOST":    "_ignore     _ignore       _begin_image _begin_image _ignore     _begin_image  _ignore",
    "FEED_FAILED":   "_ignore     _ignore       _unreadable  _unreadable  _ignore     _unreadable   _ignore",
    "TICK":          "_insist     _beat         _beat        _beat        _ignore     _ignore       _ignore",
    "STOP":          "_stop       _stop         _stop        _stop        _stop       _stop         _stop",
    "PREPARE":       "_on_prepare _on_prepare   _on_prepare  _on_prepare  _on_prepare _on_prepare   _on_prepare",
    "PROMISE":       "_ignore     _on_promise   _on_report   _on_report   _ignore     _ignore       _ignore",
    "STALE":         "_ignore     _on_stale     _on_stale    _on_stale    _ignore     _ignore       _ignore",
    "PULL":          "_old        _old          _old         _old         _old        _on_pull      _old",
    "RECORDS":       "_old        _old          _on_records  _old         _old        _on_records   _on_records",
    "IMAGE_PART":    "_old        _old          _on_image    _old         _old        _on_image     _on_image",
    "RECEIPT":       "_ignore     _ignore       _on_receipt  _on_receipt  _ignore     _on_taken     _on_taken",
    "KEEPALIVE":     "_old        _old          _old         _old         _old        _on_keepalive _on_keepalive",
}

ACTIONS: dict[PartitionRole, dict[PartitionEvent, str]] = {
    role: {event: dict(zip(_COLUMNS, [*actions.split(), "_ignore"], strict=True))[role]
           for event, actions in ((PartitionEvent[name], row) for name, row in _ROWS.items())} for role in _COLUMNS}
