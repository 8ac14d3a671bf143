"""The wire: names, headers and control messages that dispatchers and consumers share.

- `protocol`: names of queues and exchanges, headers, the bodies of control messages (docs/protocol.md)
- `group_text`: group ids as operators write and read them
- `origin`: where a parked, moved or dead message came in first
- `json_fields`: reads JSON that others have written
- `json_text`: writes JSON that people see too
- `plain_text`: makes text of others printable
"""
