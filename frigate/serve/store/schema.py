"""The tables, as a list of migrations. A store remembers how many it has had; the rest are applied when it is opened.

The statements are understood by SQLite and PostgreSQL alike. A migration that has been released is never changed:
append another.
"""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE readings (
            time_us BIGINT NOT NULL,             -- start of its interval, microseconds since 1970 UTC
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
            end_s BIGINT,                        -- NULL: until it is ended
            created_s BIGINT NOT NULL
        )""",
        "CREATE INDEX closures_of_road ON closures (source, target)",
        """CREATE TABLE forecasts (
            issued_s BIGINT PRIMARY KEY,         -- a step boundary: one forecast each
            made_s DOUBLE PRECISION NOT NULL,
            network TEXT NOT NULL,               -- version of the network that its arrays belong to
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
            time_s BIGINT PRIMARY KEY,           -- the snapshot that forecasts of it are compared with
            network TEXT NOT NULL,
            body BYTEA NOT NULL
        )""",
    ),
    (
        """CREATE TABLE reading_changes (
            period BIGINT PRIMARY KEY,           -- of five minutes, since 1970 UTC
            changes BIGINT NOT NULL              -- how often readings of that time were stored or corrected
        )""",
    ),
)
