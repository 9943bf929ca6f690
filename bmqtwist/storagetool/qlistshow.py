"""`bmq storage qlist`: the records of a QLIST file, which name the queues of a partition and their apps."""

from __future__ import annotations

from bmqtwist.storage.records import QUEUE_RECORD_HEADER, parse_queue_record
from bmqtwist.storage.store import QLIST_HEADER_BYTES
from bmqtwist.storagetool.fields import Fields, aligned, hex_key, texts
from bmqtwist.storagetool.output import HumanOutput, JsonOutput, Write
from bmqtwist.storagetool.setview import ReadableFile


def show_qlist(file: ReadableFile, write: Write, json_mode: str) -> str:
    """Print all records; what stopped the reading before the end of the file, or ""."""
    output = JsonOutput(write, json_mode == "pretty") if json_mode else HumanOutput(write, True, 0)
    content = file.read(0, file.size)
    offset, count, problem = QLIST_HEADER_BYTES, 0, ""
    while offset < len(content):
        try:
            uri, key, apps, size = parse_queue_record(content, offset)
        except ValueError as error:
            if any(content[offset:offset + QUEUE_RECORD_HEADER.size]):
                problem = f"there is no record at offset {offset}: {error}"
            break
        fields: Fields = [("Index", count), ("Offset", offset), ("OffsetWords", offset >> 2), ("QueueUri", uri),
                          ("QueueKey", hex_key(key))]
        if isinstance(output, JsonOutput):
            output.item({**texts(fields), "Apps": [{"AppId": name, "AppKey": hex_key(app)} for name, app in apps]})
        else:
            write(aligned([*fields, *(("App", f"{name} [{hex_key(app)}]") for name, app in apps)], 12) + "\n")
        offset += size
        count += 1
    if isinstance(output, JsonOutput):
        output.member("QueueRecords", str(count))
    else:
        write(f"{count or 'No'} queue record(s) found.\n")
    output.finish()
    return problem
