"""The tables, as a list of migrations. Opening a store applies those that it has not had yet.

The statements work in SQLite and PostgreSQL. Never change a migration that has been released: append another.
"""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE readings (
            time_us BIGINT NOT NULL,             -- start of the interval, microseconds since 1970 UTC
            node TEXT NOT NULL,
            value DOUBLE PRECISION NOT NULL,
            received_s DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (time_us, node)
        )""",
        "CREATE INDEX readings_of_node ON readings (node, time_us)",
        """CREATE TABLE closures (
            id TEXT PRIMARY KEY,
            source TEXT NOT NULL,
            target TEXT NOT NULL,
            begin_s BIGINT NOT NULL,
            end_s BIGINT,                        -- NULL: until reopened
            created_s BIGINT NOT NULL
        )""",
        "CREATE INDEX closures_of_road ON closures (source, target)",
        """CREATE TABLE forecasts (
            issued_s BIGINT PRIMARY KEY,         -- a step boundary
            made_s DOUBLE PRECISION NOT NULL,
            network TEXT NOT NULL,               -- version of the network
            body BYTEA NOT NULL
        )""",
        """CREATE TABLE tokens (
            id TEXT PRIMARY KEY,
            name TEXT NOT NULL,
            role TEXT NOT NULL,
            hash BYTEA NOT NULL,                 -- SHA-256 of the secret
            created_s BIGINT NOT NULL,
            revoked_s BIGINT
        )""",
        "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    ),
    (
        """CREATE TABLE scores (
            time_s BIGINT PRIMARY KEY,           -- start of the snapshot scored
            network TEXT NOT NULL,
            body BYTEA NOT NULL
        )""",
    ),
    (
        """CREATE TABLE reading_changes (
            period BIGINT PRIMARY KEY,           -- number of five-minute periods since 1970 UTC
            changes BIGINT NOT NULL              -- how often readings of the period were stored or corrected
        )""",
    ),
    (
        "ALTER TABLE tokens ADD COLUMN expires_s BIGINT",  # NULL: never
        "ALTER TABLE tokens ADD COLUMN sensors TEXT NOT NULL DEFAULT ''",  # a name in each line; none: all of them
        "ALTER TABLE tokens ADD COLUMN per_minute BIGINT",  # readings; NULL: any number
    ),
    (
        """CREATE TABLE lease (                 -- of the clock; one row
            term BIGINT NOT NULL,                -- how often it has been taken
            beats BIGINT NOT NULL,               -- of its holder, in this term
            holder TEXT NOT NULL                 -- '': nobody
        )""",
        "INSERT INTO lease VALUES (0, 0, '')",
    ),
    (
        """CREATE TABLE quarantine (             -- readings far beyond what their sensor has read
            time_us BIGINT NOT NULL,
            node TEXT NOT NULL,
            value DOUBLE PRECISION NOT NULL,
            received_s DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (node, time_us)
        )""",
        """CREATE TABLE released (               -- what an operator has found plausible all the same
            node TEXT PRIMARY KEY,
            least DOUBLE PRECISION NOT NULL,
            most DOUBLE PRECISION NOT NULL
        )""",
    ),
    (
        """CREATE TABLE audit (
            id TEXT PRIMARY KEY,                 -- sorts by time
            time_s DOUBLE PRECISION NOT NULL,
            token TEXT NOT NULL,                 -- its id
            name TEXT NOT NULL,
            role TEXT NOT NULL,
            client TEXT NOT NULL,                -- address
            action TEXT NOT NULL,
            subject TEXT NOT NULL,
            number BIGINT NOT NULL
        )""",
        "CREATE INDEX audit_by_time ON audit (time_s)",
        "CREATE INDEX audit_of_action ON audit (action, id)",
    ),
)
