"""The tables of a SQLite log. `events` is the truth; the two others are folded from it in the same transaction."""

from __future__ import annotations

from functools import cache

from intentlog.store import pages, whole
from intentlog.store.connection import memory_connection
from intentlog.store.pages import EVENT_COLUMNS

CREATE = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY NOT NULL) WITHOUT ROWID, STRICT;

-- Append-only. `previous_seq` chains the records of a branch backwards, so that its history needs no index.
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    branch TEXT NOT NULL,
    previous_seq INTEGER NOT NULL,
    wall_ns INTEGER NOT NULL,
    boot_id BLOB,                      -- of records that bound a call's time
    boot_ns INTEGER,
    record TEXT NOT NULL,              -- JSON, see core/codec.py
    payload BLOB,
    chain BLOB NOT NULL
) STRICT;

-- unfinished: the attempt is open, or ended INDETERMINATE. Its partial index is what a supervisor scans.
CREATE TABLE branches (branch TEXT PRIMARY KEY, unfinished INTEGER NOT NULL, state BLOB NOT NULL)
    WITHOUT ROWID, STRICT;
CREATE INDEX unfinished_branches ON branches (branch) WHERE unfinished;

-- is_listed: it is open, so that a restart has to look at it, or it contradicts. Its partial index is what a restart
-- scans, whatever the log's length.
-- room: so that the row keeps its length while the operation goes on, and is written in place.
CREATE TABLE operations (
    branch TEXT NOT NULL,
    step TEXT NOT NULL,
    generation INTEGER NOT NULL,
    is_listed INTEGER NOT NULL,
    state BLOB NOT NULL,
    room BLOB NOT NULL,
    PRIMARY KEY (branch, step, generation)
) WITHOUT ROWID, STRICT;
CREATE INDEX listed_operations ON operations (branch) WHERE is_listed;
"""

NEXT_SEQ = "SELECT coalesce(max(seq), 0) + 1 FROM events"
SALT = "SELECT value FROM meta WHERE key = 'salt'"
BRANCH = "SELECT state FROM branches WHERE branch = ?"
OPERATION = "SELECT state FROM operations WHERE branch = ? AND step = ? AND generation = ?"
NEWEST_OPERATION = "SELECT state FROM operations WHERE branch = ? AND step = ? ORDER BY generation DESC LIMIT 1"
AHEAD = "SELECT state FROM operations WHERE branch = ? AND step >= ? ORDER BY step, generation LIMIT ?"
DATA_VERSION = "PRAGMA data_version"
PAYLOAD = "SELECT payload FROM events WHERE seq = ?"
PAYLOADS = """
SELECT seq, payload FROM events WHERE seq IN (SELECT value FROM json_each(?1)) AND length(payload) <= ?2
"""
STEPS_OF = "SELECT DISTINCT step FROM operations WHERE branch = ? LIMIT ?"
# Of a branch that is long SQLite would choose the primary key, and read each of its operations: so the index is named.
_LISTED = "operations INDEXED BY listed_operations WHERE is_listed"
BRANCH_AND_LISTED = """
SELECT branches.state, operations.state FROM branches LEFT JOIN operations INDEXED BY listed_operations
ON operations.branch = branches.branch AND is_listed WHERE branches.branch = ? ORDER BY step, generation
"""
INSERT_EVENT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
PUT_BRANCH = """
INSERT INTO branches VALUES (?1, ?2, ?3) ON CONFLICT (branch) DO UPDATE SET unfinished = ?2, state = ?3
"""
PUT_OPERATION = """
INSERT INTO operations VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (branch, step, generation) DO UPDATE SET is_listed = ?4, state = ?5, room = ?6
"""
# Of rows that are known: a column of an index that is named here is written to the index, even if it stays the same.
SET_BRANCH = "UPDATE branches SET state = ?2 WHERE branch = ?1"
SET_OPERATION = "UPDATE operations SET state = ?4, room = ?5 WHERE branch = ?1 AND step = ?2 AND generation = ?3"
EVENT = f"SELECT {EVENT_COLUMNS} FROM events WHERE seq = ?"  # noqa: S608 - a constant

# Read in pages: each begins behind a key, and is limited. Its first columns are the key.
EVENTS_FROM = f"SELECT {EVENT_COLUMNS} FROM events WHERE seq > ? ORDER BY seq LIMIT ?"  # noqa: S608 - a constant
BRANCHES = "SELECT branch, state FROM branches WHERE branch > ? ORDER BY branch LIMIT ?"
UNFINISHED_BRANCHES = """
SELECT branch, state FROM branches INDEXED BY unfinished_branches WHERE unfinished AND branch > ?
ORDER BY branch LIMIT ?
"""
BRANCH_ROWS = "SELECT branch, unfinished, state FROM branches WHERE branch > ? ORDER BY branch LIMIT ?"
_FROM_STEP = "(step, generation) > (?, ?) ORDER BY step, generation LIMIT ?"
_FROM_OPERATION = "(branch, step, generation) > (?, ?, ?) ORDER BY branch, step, generation LIMIT ?"
OPERATION_ROWS = f"SELECT step, generation, is_listed, state FROM operations WHERE branch = ? AND {_FROM_STEP}"  # noqa: S608 - a constant
_OPERATIONS_OF = f"SELECT step, generation, state FROM operations WHERE branch = ? AND {_FROM_STEP}"  # noqa: S608 - a constant
_LISTED_OF = f"SELECT step, generation, state FROM {_LISTED} AND branch = ? AND {_FROM_STEP}"  # noqa: S608 - a constant
_OPERATIONS = f"SELECT branch, step, generation, state FROM operations WHERE {_FROM_OPERATION}"  # noqa: S608 - a constant
_LISTED_ALL = f"SELECT branch, step, generation, state FROM {_LISTED} AND {_FROM_OPERATION}"  # noqa: S608 - a constant
ALL = (_OPERATIONS, _OPERATIONS_OF)  # of every branch, of one
LISTED = (_LISTED_ALL, _LISTED_OF)
# Below the lowest keys that there can be.
NO_STEP = ("", -(1 << 63))
NO_OPERATION = ("", *NO_STEP)

# A branch's records from the place ?1 back along its chain, newest first, above the place ?2: at most ?3 of them, and
# none more once they have reached ?4 bytes.
_SIZE = "octet_length(events.record) + coalesce(length(events.payload), 0)"
WALK_BACK = f"""
WITH RECURSIVE walk AS (
    SELECT {EVENT_COLUMNS}, {_SIZE} AS bytes FROM events WHERE seq = ?1 AND seq > ?2
    UNION ALL
    SELECT events.*, walk.bytes + {_SIZE} FROM walk CROSS JOIN events ON events.seq = walk.previous_seq
    WHERE walk.previous_seq < walk.seq AND walk.previous_seq > ?2 AND walk.bytes < ?4
    LIMIT ?3
)
SELECT {EVENT_COLUMNS} FROM walk
"""  # noqa: S608 - constants
# Where such a walk ends (the record, and the one before it), and after how many records.
PAGE_BACK = f"""
WITH RECURSIVE walk (seq, previous_seq, bytes) AS (
    SELECT seq, previous_seq, {_SIZE} FROM events WHERE seq = ?1 AND seq > ?2
    UNION ALL
    SELECT events.seq, events.previous_seq, walk.bytes + {_SIZE}
    FROM walk CROSS JOIN events ON events.seq = walk.previous_seq
    WHERE walk.previous_seq < walk.seq AND walk.previous_seq > ?2 AND walk.bytes < ?4
    LIMIT ?3
)
SELECT min(seq), previous_seq, count(*) FROM walk
"""  # noqa: S608 - constants

WALK = pages.Walk(EVENT, WALK_BACK, PAGE_BACK)
WHOLE = whole.Statements(WALK, BRANCH_ROWS, OPERATION, OPERATION_ROWS, NO_STEP)

TABLES = "SELECT name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'"

# What belongs to nothing, or is missing: (a query that finds it, the first thousand at most; how it is told).
STRAYS = (
    ("SELECT max(seq) - count(*) FROM events HAVING max(seq) - count(*) > 0", "{} records are missing"),
    (
        "SELECT seq, branch FROM events WHERE branch NOT IN (SELECT branch FROM branches) LIMIT 1000",
        "record {} belongs to branch {!r}, which has no row",
    ),
    (
        "SELECT step, branch FROM operations WHERE branch NOT IN (SELECT branch FROM branches) LIMIT 1000",
        "operation {!r} belongs to branch {!r}, which has no row",
    ),
)


@cache
def expected_tables() -> frozenset[tuple[str, str]]:
    """The tables and indexes of a log, as SQLite keeps their text."""
    connection = memory_connection()
    connection.execute(CREATE)
    return frozenset((name, sql) for name, sql in connection.execute(TABLES).fetchall())
