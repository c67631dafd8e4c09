"""The tables of a PostgreSQL log, and every statement that reads or writes them.

`events` is the truth; `branches` and `operations` are folded from it in the same transaction, as in SQLite. Names and
steps sort by their bytes (`COLLATE "C"`), so that every server, whatever its language, takes locks in one order and
pages in one order.

Places. `seq` comes from a sequence, taken under the branch's lock: rising within a branch, unique in the log, with gaps
where records were refused or a transaction was rolled back. Between branches transactions commit in another order than
that of their places, so that a reader of all branches who has seen place 7 could miss a 6 that commits later. None is
missed: before it takes places, a transaction takes a shared advisory lock whose key is the newest place that was given
out by then, so that all of its own are above it; it is released when the transaction has ended and can be seen. The
*horizon* is the least of these keys, or the newest place where nobody holds one. What is at or below it is decided. A
reader (`history` of all branches, `newest_seq`) goes no further in that moment. It reads, in this order and each by a
statement of its own: the newest place; the keys; the records. Nobody waits for anybody, and transactions of other
programs on the server, however old, hold nothing up.

(Not chosen: a column with the transaction's id and the snapshot's `xmin` as horizon. Ids are given out in another order
than places, and `xmin` stands still for any long transaction of any database of the server.)
"""

from __future__ import annotations

from typing import NamedTuple

from intentlog.store import pages, whole
from intentlog.store.pages import EVENT_COLUMNS

# Each is one step forward; a log of format n has had the first n of them. Never changed, only added to.
MIGRATIONS = (
    """
CREATE TABLE {s}.meta (key text COLLATE "C" PRIMARY KEY, value bytea NOT NULL);
CREATE SEQUENCE {s}.places AS bigint MINVALUE 0 START 0;
SELECT setval('{s}.places', 0, true);  -- so that the newest place is always its last value: 0 while there is none
CREATE TABLE {s}.events (
    seq bigint PRIMARY KEY,
    branch text COLLATE "C" NOT NULL,
    previous_seq bigint NOT NULL,
    wall_ns bigint NOT NULL,
    boot_id bytea,
    boot_ns bigint,
    record bytea NOT NULL,
    payload bytea,
    chain bytea NOT NULL
);
-- holder: the store whose attempt it is, so that one statement finds its lease. Half of each page is left free: a row
-- that is rewritten three times for each effect then stays in its page, and no index is touched.
CREATE TABLE {s}.branches (
    branch text COLLATE "C" PRIMARY KEY,
    unfinished boolean NOT NULL,
    holder text COLLATE "C" NOT NULL,
    state bytea NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX unfinished_branches ON {s}.branches (branch) WHERE unfinished;
CREATE TABLE {s}.operations (
    branch text COLLATE "C" NOT NULL,
    step text COLLATE "C" NOT NULL,
    generation bigint NOT NULL,
    is_listed boolean NOT NULL,
    state bytea NOT NULL,
    PRIMARY KEY (branch, step, generation)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX listed_operations ON {s}.operations (branch, step, generation) WHERE is_listed;
CREATE TABLE {s}.owners (owner text COLLATE "C" PRIMARY KEY, lease_until timestamptz NOT NULL);

-- The first round trip of an append. Each statement of a volatile function has a snapshot of its own (READ COMMITTED):
-- those behind the lock see what was committed before it was granted (I2).
CREATE FUNCTION {s}.take(
    names text[], fresh text[], asked_branches text[], asked_steps text[], asked_generations bigint[], opening text[],
    steps_max bigint, records bigint, horizon_key bigint, lock_limit text, idle_limit text, transaction_limit text,
    OUT now_ns bigint, OUT xid text, OUT pid integer, OUT places bigint[], OUT fsync text, OUT synchronous_commit text,
    OUT meta bytea[], OUT locked text[], OUT states bytea[], OUT branches text[], OUT steps text[],
    OUT generations bigint[], OUT operations bytea[], OUT step_branches text[], OUT known_steps text[]
) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM set_config('lock_timeout', lock_limit, true),
        set_config('idle_in_transaction_session_timeout', idle_limit, true),
        set_config('statement_timeout', '0', true),  -- COMMIT may wait for a standby: to give that up is no answer
        set_config('enable_seqscan', 'off', true),  -- a plan that was kept since the tables were empty stays a good one
        set_config('jit', 'off', true);
    IF current_setting('server_version_num')::int >= 170000 THEN
        PERFORM set_config('transaction_timeout', transaction_limit, true);
    END IF;
    IF cardinality(fresh) > 0 THEN
        INSERT INTO {s}.branches (branch, unfinished, holder, state)
            SELECT n, false, '', ''::bytea FROM unnest(fresh) WITH ORDINALITY AS u (n, place) ORDER BY place
            ON CONFLICT (branch) DO NOTHING;
    END IF;
    SELECT array_agg(b.branch), array_agg(b.state) INTO locked, states FROM (
        SELECT b.branch, b.state FROM {s}.branches b WHERE b.branch = ANY (names) ORDER BY b.branch FOR UPDATE
    ) AS b;
    PERFORM pg_advisory_xact_lock_shared(horizon_key::int, (p.last_value & 2147483647)::int) FROM {s}.places p;
    places := ARRAY (SELECT nextval('{s}.places') FROM generate_series(1, records));
    now_ns := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000;  -- the clock has microseconds
    xid := pg_current_xact_id()::text;
    pid := pg_backend_pid();
    fsync := current_setting('fsync');
    synchronous_commit := current_setting('synchronous_commit');
    meta := ARRAY (SELECT m.value FROM {s}.meta m WHERE m.key IN ('format', 'salt') ORDER BY m.key);
    IF cardinality(asked_steps) > 0 THEN
        SELECT array_agg(o.branch), array_agg(o.step), array_agg(o.generation), array_agg(o.state)
            INTO branches, steps, generations, operations
            FROM unnest(asked_branches, asked_steps, asked_generations) AS u (branch, step, generation)
            JOIN {s}.operations o ON o.branch = u.branch AND o.step = u.step AND o.generation = u.generation;
    END IF;
    IF cardinality(opening) > 0 THEN
        SELECT array_agg(u.n), array_agg(k.step) INTO step_branches, known_steps FROM unnest(opening) AS u (n)
            CROSS JOIN LATERAL (
                SELECT DISTINCT o.step FROM {s}.operations o WHERE o.branch = u.n LIMIT steps_max
            ) AS k;
    END IF;
END $$;

-- The second, but for its COMMIT.
CREATE FUNCTION {s}.put(
    seqs bigint[], of_branches text[], previous bigint[], wall_ns bigint[], boot_ids bytea[], boot_ns bigint[],
    records bytea[], payloads bytea[], chains bytea[],
    names text[], are_unfinished boolean[], holders text[], branch_states bytea[],
    operation_branches text[], steps text[], generations bigint[], listed boolean[], operation_states bytea[],
    empty text[]
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO {s}.events (seq, branch, previous_seq, wall_ns, boot_id, boot_ns, record, payload, chain)
        SELECT * FROM unnest(seqs, of_branches, previous, wall_ns, boot_ids, boot_ns, records, payloads, chains);
    UPDATE {s}.branches b SET unfinished = u.unfinished, holder = u.holder, state = u.state
        FROM unnest(names, are_unfinished, holders, branch_states) AS u (branch, unfinished, holder, state)
        WHERE b.branch = u.branch;
    IF cardinality(steps) > 0 THEN
        INSERT INTO {s}.operations (branch, step, generation, is_listed, state)
            SELECT * FROM unnest(operation_branches, steps, generations, listed, operation_states)
            ON CONFLICT (branch, step, generation)
            DO UPDATE SET is_listed = excluded.is_listed, state = excluded.state;
    END IF;
    IF cardinality(empty) > 0 THEN  -- of new branches whose records were all refused
        DELETE FROM {s}.branches b WHERE b.branch = ANY (empty) AND b.state = ''::bytea;
    END IF;
END $$;
""",
)
FORMAT = len(MIGRATIONS)
COLUMNS = {
    "meta": "key value",
    "events": EVENT_COLUMNS.replace(",", ""),
    "branches": "branch unfinished holder state",
    "operations": "branch step generation is_listed state",
    "owners": "owner lease_until",
}
INDEXES = ("unfinished_branches", "listed_operations")

NOW_NS = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000"  # the clock has microseconds
NO_STEP = ("", -1)
NO_OPERATION = ("", *NO_STEP)
_SIZE = "octet_length(e.record) + coalesce(octet_length(e.payload), 0)"
_E = ", ".join(f"e.{column}" for column in EVENT_COLUMNS.split(", "))
_WALK = f"""
WITH RECURSIVE walk AS (
    (SELECT {_E}, ({_SIZE})::bigint AS bytes FROM {{s}}.events e WHERE e.seq = $1 AND e.seq > $2)
    UNION ALL
    SELECT {_E}, walk.bytes + {_SIZE} FROM walk JOIN {{s}}.events e ON e.seq = walk.previous_seq
    WHERE walk.previous_seq < walk.seq AND walk.previous_seq > $2 AND walk.bytes < $4
), page AS (SELECT * FROM walk LIMIT $3)
"""
_LEASED = "lease_until > clock_timestamp()"
_OPERATIONS_AFTER = "(branch, step, generation) > ($1, $2, $3) ORDER BY branch, step, generation LIMIT $4"
_STEPS_AFTER = "branch = $1 AND (step, generation) > ($2, $3) ORDER BY step, generation LIMIT $4"
_OF_STEP = "WHERE branch = $1 AND step = $2"


class Texts(NamedTuple):
    """Every statement, for one schema. `$n` are its values, in order."""

    # --- what a writer sends -----------------------------------------------------------------------------------------
    take: str = """SELECT * FROM {s}.take($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[],
        $7, $8, $9, $10, $11, $12)"""
    put: str = """SELECT {s}.put($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bytea[], $6::bigint[],
        $7::bytea[], $8::bytea[], $9::bytea[], $10::text[], $11::boolean[], $12::text[], $13::bytea[], $14::text[],
        $15::text[], $16::bigint[], $17::boolean[], $18::bytea[], $19::text[])"""
    operations: str = """SELECT o.branch, o.step, o.generation, o.state
        FROM unnest($1::text[], $2::text[], $3::bigint[]) AS u (branch, step, generation)
        JOIN {s}.operations o ON o.branch = u.branch AND o.step = u.step AND o.generation = u.generation"""

    # --- leases ------------------------------------------------------------------------------------------------------
    renew: str = f"""WITH before AS (SELECT {_LEASED} AS held FROM {{s}}.owners WHERE owner = $1), put AS (
        INSERT INTO {{s}}.owners VALUES ($1, clock_timestamp() + $2 * interval '1 microsecond')
        ON CONFLICT (owner) DO UPDATE SET lease_until = excluded.lease_until)
        SELECT {NOW_NS}, (SELECT held FROM before)"""
    let_go: str = "DELETE FROM {s}.owners WHERE owner = $1"
    sweep: str = "DELETE FROM {s}.owners WHERE lease_until < clock_timestamp() - interval '7 days'"

    # --- what became of a commit -------------------------------------------------------------------------------------
    xact_status: str = "SELECT pg_xact_status($1::text::xid8)"
    end_process: str = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE pid = $2 AND backend_xid::text = ($1::text::bigint & 4294967295)::text AND usename = current_user"""
    confirm: str = "INSERT INTO {s}.owners VALUES ($1::text, clock_timestamp())"
    landed: str = """SELECT count(*) FROM {s}.events e
        JOIN unnest($1::bigint[], $2::bytea[]) AS u (seq, chain) ON e.seq = u.seq AND e.chain = u.chain"""

    # --- reads -------------------------------------------------------------------------------------------------------
    salt: str = "SELECT value FROM {s}.meta WHERE key = 'salt'"
    view: str = f"""SELECT {NOW_NS}, (SELECT state FROM {{s}}.branches WHERE branch = $1),
        (SELECT state FROM {{s}}.operations {_OF_STEP} AND generation = $3)"""
    view_newest: str = f"""SELECT {NOW_NS}, (SELECT state FROM {{s}}.branches WHERE branch = $1),
        (SELECT state FROM {{s}}.operations {_OF_STEP} ORDER BY generation DESC LIMIT 1)"""
    branch_view: str = f"""SELECT {NOW_NS}, b.state, coalesce({_LEASED}, false), o.state
        FROM (SELECT $1::text AS branch) AS asked LEFT JOIN {{s}}.branches b ON b.branch = asked.branch
        LEFT JOIN {{s}}.owners w ON w.owner = b.holder
        LEFT JOIN {{s}}.operations o ON o.branch = b.branch AND o.is_listed ORDER BY o.step, o.generation"""
    payload: str = "SELECT payload FROM {s}.events WHERE seq = $1"
    branch: str = "SELECT state FROM {s}.branches WHERE branch = $1"
    event: str = f"SELECT {EVENT_COLUMNS} FROM {{s}}.events WHERE seq = $1"
    walk_back: str = f"{_WALK} SELECT {EVENT_COLUMNS} FROM page ORDER BY seq DESC"
    page_back: str = f"{_WALK} SELECT min(seq), (array_agg(previous_seq ORDER BY seq))[1], count(*) FROM page"
    events_after: str = f"""SELECT {EVENT_COLUMNS} FROM {{s}}.events WHERE seq > $1 AND seq <= $3
        ORDER BY seq LIMIT $2"""
    newest_place: str = "SELECT last_value FROM {s}.places"
    marks: str = """SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND classid = '{s}.places'::regclass AND objsubid = 2"""
    newest_seq: str = "SELECT coalesce(max(seq), 0) FROM {s}.events WHERE seq <= $1"
    count_of: str = "SELECT count(*) FROM {s}.events WHERE seq > $1 AND seq <= $2"
    branches: str = "SELECT branch, state FROM {s}.branches WHERE branch > $1 ORDER BY branch LIMIT $2"
    unfinished: str = "SELECT branch, state FROM {s}.branches WHERE unfinished AND branch > $1 ORDER BY branch LIMIT $2"
    branch_rows: str = "SELECT branch, unfinished, state FROM {s}.branches WHERE branch > $1 ORDER BY branch LIMIT $2"
    operation: str = f"SELECT state FROM {{s}}.operations {_OF_STEP} AND generation = $3"
    operation_rows: str = f"SELECT step, generation, is_listed, state FROM {{s}}.operations WHERE {_STEPS_AFTER}"
    all_operations: str = f"SELECT branch, step, generation, state FROM {{s}}.operations WHERE {_OPERATIONS_AFTER}"
    operations_of: str = f"SELECT step, generation, state FROM {{s}}.operations WHERE {_STEPS_AFTER}"
    all_listed: str = f"""SELECT branch, step, generation, state FROM {{s}}.operations
        WHERE is_listed AND {_OPERATIONS_AFTER}"""
    listed_of: str = f"""SELECT step, generation, state FROM {{s}}.operations
        WHERE is_listed AND {_STEPS_AFTER}"""

    # --- what is wrong with the tables -------------------------------------------------------------------------------
    columns: str = """SELECT c.relname, string_agg(a.attname, ' ' ORDER BY a.attnum) FROM pg_class c
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        WHERE c.relnamespace = '{s}'::regnamespace AND c.relkind = 'r' GROUP BY c.relname"""
    indexes: str = """SELECT c.relname FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid
        WHERE c.relnamespace = '{s}'::regnamespace AND i.indisvalid AND i.indpred IS NOT NULL"""

    @property
    def walk(self) -> pages.Walk:
        """How a branch's records are read back."""
        return pages.Walk(self.event, self.walk_back, self.page_back, newest_back=self.walk_back)

    @property
    def whole(self) -> whole.Statements:
        """How a branch is read whole."""
        return whole.Statements(self.walk, self.branch_rows, self.operation, self.operation_rows, NO_STEP)


# What belongs to nothing: (a query that finds it, the first thousand at most; how it is told).
STRAYS = (
    (
        """SELECT seq, branch FROM {s}.events e
        WHERE NOT EXISTS (SELECT FROM {s}.branches b WHERE b.branch = e.branch) LIMIT 1000""",
        "record {} belongs to branch {!r}, which has no row",
    ),
    (
        """SELECT step, branch FROM {s}.operations o
        WHERE NOT EXISTS (SELECT FROM {s}.branches b WHERE b.branch = o.branch) LIMIT 1000""",
        "operation {!r} belongs to branch {!r}, which has no row",
    ),
)


def texts_of(schema: str) -> Texts:
    """The statements for one schema, whose name needs no quoting inside quotes."""
    return Texts(*[text.format(s=f'"{schema}"') for text in Texts()])
