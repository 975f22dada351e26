"""The journal: one SQLite file for each study, written by the driver alone, and the only thing that analysis reads.

Everything a study knows is here: what was asked, every trial, lease, report, charge and decision. The state of the
ladder and of the ledger is a function of it, so that a killed study goes on where it stopped.
"""

import fcntl
import json
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Self

from tune.errors import UserError
from tune.reports import Row, Value


class Stopwatch:
    """Adds up the wall-clock `seconds` that were spent inside of it: `with stopwatch: ...`, one after another."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._began


JOURNAL_FILE = "journal.db"
LOCK = "journal.lock"
STUDY_FILE = "study.json"
ENERGY = "energy_joules"
"""The fact that holds the energy which the machine took meanwhile, where its counters can be read."""
DAMAGED = (LookupError, TypeError, ValueError, AttributeError, RecursionError, ArithmeticError, StopIteration)
"""The errors that reading a journal raises where it says something impossible."""
DAMAGED_REMEDY = "take that folder away and go on with its --mirror copy, or begin a new study"
ENDED_BY_CAP, ENDED_BY_ERRORS = "cap", "errors"
"""The reason that the fact `ended` gives where a search came to its own end."""
MIN_UNSPENT_SHARE = 0.01
"""Share of the cap unspent above which a line says why: less is what no segment could use."""
Fact = Value | Sequence["Fact"] | Mapping[str, "Fact"]
"""A fact of a study, JSON-able."""

SCHEMA = """
CREATE TABLE study (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE trials (
    trial TEXT PRIMARY KEY, family TEXT NOT NULL, config TEXT NOT NULL, parameters INTEGER,
    state TEXT NOT NULL, reason TEXT, created REAL NOT NULL);
CREATE TABLE leases (
    lease INTEGER PRIMARY KEY, trial TEXT NOT NULL REFERENCES trials, slot INTEGER NOT NULL REFERENCES slots,
    purpose TEXT NOT NULL, rung INTEGER, goal INTEGER, price REAL NOT NULL, reserved REAL NOT NULL,
    opened REAL NOT NULL, closed REAL, charged REAL);
CREATE TABLE reports (
    report INTEGER PRIMARY KEY, trial TEXT NOT NULL REFERENCES trials, lease INTEGER REFERENCES leases,
    at REAL NOT NULL, rung INTEGER, final INTEGER NOT NULL DEFAULT 0,
    steps INTEGER, tokens INTEGER, training_seconds REAL, train_loss REAL,
    valid_loss REAL, perplexity REAL, bits_per_character REAL, nats_per_word REAL, accuracy REAL,
    test_loss REAL, test_perplexity REAL, test_bits_per_character REAL,
    learning_rate REAL, gradient_norm REAL, tokens_per_second REAL, step_seconds REAL, memory_bytes INTEGER,
    checkpoint TEXT);
CREATE TABLE charges (
    charge INTEGER PRIMARY KEY, at REAL NOT NULL, slot INTEGER REFERENCES slots, trial TEXT REFERENCES trials,
    lease INTEGER REFERENCES leases, what TEXT NOT NULL, seconds REAL NOT NULL);
CREATE TABLE slots (slot INTEGER PRIMARY KEY, opened REAL NOT NULL, closed REAL);
CREATE TABLE decisions (
    decision INTEGER PRIMARY KEY, at REAL NOT NULL, trial TEXT REFERENCES trials, action TEXT NOT NULL,
    rung INTEGER, reason TEXT NOT NULL);
CREATE TABLE memory (
    event INTEGER PRIMARY KEY, at REAL NOT NULL, trial TEXT NOT NULL REFERENCES trials,
    lease INTEGER REFERENCES leases, micro_batches INTEGER NOT NULL, predicted INTEGER NOT NULL, measured INTEGER);
CREATE INDEX reports_by_trial ON reports (trial);
CREATE INDEX charges_by_lease ON charges (lease);
"""
UPGRADES = (
    "ALTER TABLE reports ADD COLUMN mfu REAL",
    "ALTER TABLE slots ADD COLUMN share REAL",
    """CREATE TABLE kernels (
    row INTEGER PRIMARY KEY, at REAL NOT NULL, kernel TEXT NOT NULL, implementation TEXT NOT NULL,
    size INTEGER NOT NULL, shape TEXT NOT NULL, dtype TEXT NOT NULL, device TEXT NOT NULL, threads INTEGER,
    status TEXT NOT NULL, correct TEXT, error REAL, compile_milliseconds REAL, bytes INTEGER, flops INTEGER,
    median_seconds REAL, end_to_end_seconds REAL, spread REAL, unit TEXT, per_second REAL, share_of_peak REAL,
    unstable INTEGER, ratios TEXT NOT NULL, values_seconds TEXT NOT NULL)""",
    "CREATE TABLE rows (row INTEGER PRIMARY KEY, at REAL NOT NULL, experiment TEXT NOT NULL, value TEXT NOT NULL)",
    "ALTER TABLE reports ADD COLUMN valid_subset INTEGER",
    "ALTER TABLE reports ADD COLUMN whole_loss REAL",
    "ALTER TABLE reports ADD COLUMN whole_perplexity REAL",
    "ALTER TABLE reports ADD COLUMN whole_bits_per_character REAL",
    "ALTER TABLE reports ADD COLUMN ended TEXT",
    "ALTER TABLE decisions ADD COLUMN report INTEGER",
    "ALTER TABLE leases ADD COLUMN micro_batches INTEGER",
    *(
        f"ALTER TABLE reports ADD COLUMN {column}"
        for column in (
            *("valid_tokens INTEGER", "valid_seconds REAL"),
            *("whole_nats_per_word REAL", "whole_accuracy REAL", "whole_tokens INTEGER", "whole_seconds REAL"),
            *("test_nats_per_word REAL", "test_accuracy REAL", "test_tokens INTEGER", "test_seconds REAL"),
            *("micro_batches INTEGER", "ran_out INTEGER", "limited_bytes INTEGER", "peak_flops REAL"),
            *("averaged_loss REAL", "averaged_perplexity REAL", "averaged_bits_per_character REAL"),
            *("averaged_nats_per_word REAL", "averaged_accuracy REAL"),
            *("averaged_tokens INTEGER", "averaged_seconds REAL", "test_blocks TEXT"),
            *("numbers TEXT", "gap REAL", "lost INTEGER", "bleu REAL", "chrf REAL"),
            *("trained_loss REAL", "trained_perplexity REAL", "trained_bits_per_character REAL"),
            *("trained_nats_per_word REAL", "trained_accuracy REAL", "trained_tokens INTEGER", "trained_seconds REAL"),
            *("step_bytes INTEGER", "step_allocations REAL", "step_ratio REAL"),
        )
    ),
    "CREATE INDEX leases_by_trial ON leases (trial)",
)
"""Additions to the schema since, in order."""
STEPS = (SCHEMA, *UPGRADES)
NEEDED_STEPS = max(count for count, step in enumerate(STEPS, 1) if not step.startswith("CREATE INDEX"))
"""How many of these steps a journal must have to go on: the indexes that come after them are made then."""
TABLES = "SELECT type, name, sql FROM sqlite_master ORDER BY type, name"
LAST_BEFORE = "bbf7e48"
"""The last commit of the project that goes on with studies whose journals had fewer steps than are needed."""

FACTS_QUERY = "SELECT key, value FROM study"
SLOT_SHARE_SQL = "IIF(share > 0, share, 1)"
"""SQL for the device-seconds in a second of a slot; 1 where none is told: of a probe, or before GPUs were shared."""

LATEST_MOMENT = 1e10
"""Seconds of a study's clock that no study comes to, about 300 years. How old a study is the system's clock does not
tell, as that can be set."""
OF_SLOT = f"MAX(1, IFNULL((SELECT {SLOT_SHARE_SQL} FROM slots WHERE slots.slot = {{}}.slot), 1))"
"""SQL for the device-seconds in a second of the slot of a row of a table, at least 1."""
ROW_CHECKS_SQL = {
    "slots": f"""
        opened BETWEEN 0 AND {LATEST_MOMENT} AND IFNULL(closed BETWEEN opened AND {LATEST_MOMENT}, 1)
        AND IFNULL(share > 0 AND share < 1e6, 1) AND slot NOT IN (
            SELECT slot FROM slots JOIN charges USING (slot)
            GROUP BY slot HAVING TOTAL(seconds) > 1 + (IFNULL(closed, MAX(at)) - opened) * {SLOT_SHARE_SQL})""",
    "leases": f"""
        opened BETWEEN (SELECT opened FROM slots WHERE slots.slot = leases.slot) AND {LATEST_MOMENT}
        AND IFNULL(closed BETWEEN opened AND {LATEST_MOMENT}, 1)
        AND IFNULL(charged BETWEEN 0 AND {LATEST_MOMENT} * {OF_SLOT.format("leases")}, 1)
        AND price >= 0 AND price < 1e300 AND reserved >= 0 AND reserved < 1e300""",
    "charges": f"""
        at BETWEEN 0 AND {LATEST_MOMENT} AND ABS(seconds) < {LATEST_MOMENT} * {OF_SLOT.format("charges")}""",
    "reports": f"""
        at BETWEEN 0 AND {LATEST_MOMENT} AND IFNULL(training_seconds BETWEEN 0 AND {LATEST_MOMENT}, 1)
        AND IFNULL(step_seconds BETWEEN 0 AND {LATEST_MOMENT}, 1) AND IFNULL(steps >= 0, 1)
        AND IFNULL(gap BETWEEN 0 AND {LATEST_MOMENT}, 1) AND IFNULL(lost BETWEEN 0 AND steps, 1)
        AND (rung IS NULL AND NOT final OR ABS(valid_loss) < 9e999)""",
    "decisions": f"at BETWEEN 0 AND {LATEST_MOMENT}",
}
"""SQL for what is true of each row of a table: times are finite and in order, and to a second no more is charged to
a slot than it was held. What was not measured is NULL."""


def as_mapping(fact: Fact) -> Mapping[str, Fact]:
    """Return a fact that is a mapping, or an empty one where there is none. TypeError: it is no mapping."""
    if not isinstance(fact, Mapping | None):
        raise TypeError(f"{fact!r} has no names")
    return fact or {}


def facts_in(rows: Iterable[Iterable[str]]) -> dict[str, Fact]:
    """Return the facts of a study from the rows of FACTS_QUERY."""
    return {key: json.loads(value) for key, value in rows}


def study_facts(folder: Path) -> Mapping[str, Fact]:
    """Return the facts of a study from its study.json, or from its journal where that file is gone or damaged.

    OSError, ValueError, RecursionError: neither can be read.
    """
    try:
        facts = json.loads((folder / STUDY_FILE).read_text(encoding="utf-8"))
        if isinstance(facts, Mapping) and "settings" in facts:
            return facts
        raise ValueError("it has no settings")
    except (OSError, ValueError, RecursionError):
        with suppress(UserError, sqlite3.Error, ValueError), closing(connect(folder, briefly=True)) as journal:
            if "settings" in (facts := facts_in(journal.execute(FACTS_QUERY))):
                return facts
        raise


def connect(folder: Path, *, briefly: bool = False) -> sqlite3.Connection:
    """Return a read-only connection to a study's journal, also while the study runs, and in a folder that is read-only.

    briefly: no run begins meanwhile, so that SQLite need not leave files of its own beside a journal that is closed.
    UserError: `folder` holds no journal.
    """
    path = Path(folder) / JOURNAL_FILE
    if not os.path.isfile(path):  # also where it may not be looked at
        raise UserError(f"study: {str(folder)!r} holds no {path.name}: name the folder of a study, such as runs/NAME")
    closed = not path.with_name(f"{path.name}-wal").exists()
    mode = "ro&immutable=1" if closed and (briefly or not os.access(folder, os.W_OK)) else "ro"
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode={mode}", uri=True, timeout=10)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA trusted_schema = OFF")
    _with_columns_of_now(connection)
    return connection


def _with_columns_of_now(connection: sqlite3.Connection) -> None:
    """Have the columns that the tables of an earlier version's journal lack read as NULL."""
    with suppress(sqlite3.Error):  # whoever reads a damaged one says so
        for table, ours in _columns_of_now().items():
            theirs = _columns(connection, table)
            if theirs and (lacking := [column for column in ours if column not in theirs]):
                nothing = ", ".join(f"NULL AS {column}" for column in lacking)
                connection.execute(f"CREATE TEMP VIEW {table} AS SELECT *, {nothing} FROM main.{table}")


@cache
def _columns_of_now() -> dict[str, list[str]]:
    """Return the columns of each table as this version writes it."""
    with closing(sqlite3.connect(":memory:")) as now:
        now.executescript(";".join(STEPS))
        tables = now.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {table: _columns(now, table) for (table,) in tables}


@cache
def _schemas() -> list[list[tuple[str, ...]]]:
    """Return what TABLES finds after none, one, two and so on of the steps."""
    with closing(sqlite3.connect(":memory:")) as ours:
        found = [ours.execute(TABLES).fetchall()]
        for step in STEPS:
            ours.executescript(step)
            found.append(ours.execute(TABLES).fetchall())
        return found


def _kinds(column: str) -> str:
    """Return the kinds of values that a column of this type may have, as SQL."""
    return "'text', 'null'" if column == "TEXT" else "'integer', 'real', 'null'"


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def _locked(folder: Path, flag: str) -> int:
    """Lock a study's folder until the returned file descriptor is closed. flag: what named it. UserError: another run
    holds the lock, or the folder is read-only, or on a disk without locks."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"{flag}: {str(folder)!r} is in use by another run: wait for it to end, or end it") from None
    except OSError as error:
        remedy = "make it writable, or copy it to a local disk" if flag == "--resume" else "name one on a local disk"
        rule = f"cannot be written and locked ({error.strerror}), as its journal must be"
        raise UserError(f"{flag}: {str(folder)!r} {rule}: {remedy}") from None
    return lock


class Journal:
    """The driver's access to a study's journal, as its one writer. watch: the time that reading and writing took;
    on_disk: whether there is something that --resume could read."""

    def __init__(self, folder: Path | None, *, new: bool) -> None:
        """Create the journal of a `new` study in `folder` (None: in memory), or open the one there; if the run was
        killed before the journal had its tables, they are made now, where the study had no trial yet.

        UserError: another run holds it, it cannot be written, or is none of ours.
        """
        self.folder, self.watch, self.on_disk = folder or Path(), Stopwatch(), folder is not None
        with ExitStack() as held:
            file = ":memory:" if folder is None else folder / JOURNAL_FILE
            if folder is not None:
                held.callback(os.close, _locked(folder, "--out" if new else "--resume"))
                if not new and not (folder / JOURNAL_FILE).is_file() and (folder / "checkpoints").exists():
                    raise UserError(f"--resume: {str(folder)!r} holds no {JOURNAL_FILE}: name the folder of a study")
            self._db = held.enter_context(closing(sqlite3.connect(file, timeout=1, isolation_level=None)))
            self._db.row_factory = sqlite3.Row
            self._db.execute("PRAGMA trusted_schema = OFF")
            version = 0 if new else self._check_version()
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(";".join(("BEGIN", *STEPS[version:])))
            self._check_sense()
            self._db.execute("COMMIT")
            self._held = held.pop_all()

    @classmethod
    def in_memory_copy(cls, folder: Path) -> Self:
        """Return a copy in memory of what the journal of a study has just now, whoever writes it: the study is only
        read. The copy has its tables also where the run was killed before the journal had them.

        UserError: it is damaged, or none of ours.
        """
        journal = cls(None, new=True)
        journal.folder = folder
        try:
            with closing(connect(folder, briefly=True)) as theirs:
                theirs.backup(journal._db)
        except sqlite3.Error as error:
            raise UserError(f"--resume: {str(folder)!r} has a {JOURNAL_FILE} that cannot be read ({error})") from None
        journal._db.executescript(";".join(STEPS[journal._check_version() :]))
        journal._check_sense()
        return journal

    def _check_version(self) -> int:
        """Return how many of the steps it has. UserError: it is of an earlier version, has tables, views, triggers or
        values that are not ours, or is damaged."""
        version: int | None = None
        try:
            there = [tuple(row) for row in self.rows(TABLES)]
            version = next((version for version, schema in enumerate(_schemas()) if there == schema), None)
            ours = version is not None and self._has_our_types()
            sound = [row[0] for row in self.rows("PRAGMA quick_check")] == ["ok"]
            whole = not self.rows("PRAGMA foreign_key_check")
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            ours = sound = whole = False
        forgotten = version == 0 and (self.folder / "checkpoints").exists()
        if version is None or forgotten or not (ours and sound and whole):
            what = f"{JOURNAL_FILE} that is damaged or of another version"
            raise UserError(f"--resume: {str(self.folder)!r} has a {what}: {DAMAGED_REMEDY}")
        if 0 < version < NEEDED_STEPS:
            remedy = f"go on with it at the project's commit {LAST_BEFORE}; analysis reads it as it is"
            raise UserError(f"--resume: {str(self.folder)!r} is of an earlier version: {remedy}")
        return version

    def _has_our_types(self) -> bool:
        """Whether all values are of their column's type: SQLite itself takes any value in any column."""
        for table in [row["name"] for row in self.rows("SELECT name FROM sqlite_master WHERE type = 'table'")]:
            others = " OR ".join(
                f"typeof({column['name']}) NOT IN ({_kinds(column['type'])})"
                for column in self.rows(f"PRAGMA table_info({table})")
            )
            if self.rows(f"SELECT 1 FROM {table} WHERE {others} LIMIT 1"):
                return False
        return True

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write all of what is written inside, or nothing; a transaction inside another is part of it."""
        if self._db.in_transaction:
            yield
            return
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:  # SQLite ends it itself where the disk is full
                self._db.execute("ROLLBACK")
            raise
        self._execute("COMMIT")

    def _check_sense(self) -> None:
        """Check each row by ROW_CHECKS_SQL. UserError: a row says something impossible."""
        for table, sense in ROW_CHECKS_SQL.items():
            query = f"SELECT {table.removesuffix('s')} AS number FROM {table} WHERE NOT ({sense}) LIMIT 1"
            for row in self.rows(query):
                what = f"in {table}, number {row['number']} has a time, share or sum that cannot be"
                damaged = f"{str(self.folder)!r} has a damaged {JOURNAL_FILE} ({what})"
                raise UserError(f"--resume: {damaged}: {DAMAGED_REMEDY}")

    def insert(self, table: str, values: Row) -> int:
        """Write one row; columns are the keys of `values`. Returns the row's number."""
        columns = ", ".join(values)
        marks = ", ".join("?" * len(values))
        cursor = self._execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", *values.values())
        return int(cursor.lastrowid or 0)

    def update(self, table: str, key: Value, values: Row) -> None:
        """Change the row of `table` whose primary key is `key`; the key's column is named as the table is, without its
        s."""
        assignments = ", ".join(f"{column} = ?" for column in values)
        key_column = table.removesuffix("s")
        self._execute(f"UPDATE {table} SET {assignments} WHERE {key_column} = ?", *values.values(), key)

    def write_facts(self, **facts: Fact) -> None:
        """Write facts of the study, each as JSON, all or none; a fact that is there already is replaced."""
        rows = [(key, json.dumps(value)) for key, value in facts.items()]
        with self.transaction(), self.watch:
            self._db.executemany("INSERT OR REPLACE INTO study (key, value) VALUES (?, ?)", rows)

    def facts(self) -> dict[str, Fact]:
        """Return the facts of the study."""
        return facts_in(self.rows(FACTS_QUERY))

    def rows(self, query: str, *values: Value) -> list[sqlite3.Row]:
        """Return the rows of a query."""
        with self.watch:
            return self._db.execute(query, values).fetchall()

    def _execute(self, statement: str, *values: Value) -> sqlite3.Cursor:
        with self.watch:
            return self._db.execute(statement, values)

    def close(self) -> None:
        """Fold the write-ahead log into the file, where the disk takes that, close it and release the lock."""
        with suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def spent_at_its_end(folder: Path, terms: Mapping[str, float | None]) -> float | None:
    """Return the device-seconds of a search that found something and came to its own end under this very cap, where
    these terms have no later deadline and ask for no smaller gain; else None."""
    with suppress(sqlite3.Error, *DAMAGED), closing(connect(folder, briefly=True)) as journal:
        found = "EXISTS (SELECT * FROM reports WHERE rung IS NOT NULL OR final)"
        query = f"SELECT key, value FROM study WHERE key IN ('ended', 'caps') AND {found}"
        facts = {row["key"]: json.loads(row["value"]) for row in journal.execute(query)}
        ended, caps = facts.get("ended"), facts.get("caps") or [{}]
        if isinstance(ended, dict) and ended.get("reason") == ENDED_BY_CAP and ended.get("cap") == terms["cap"]:
            later = (terms["deadline"] or math.inf) > (caps[-1].get("deadline") or math.inf)
            less = (terms["stop_below_gain"] or 0.0) < (ended.get("stop_below_gain") or 0.0)
            return None if later or less else float(ended.get("spent", 0.0))
    return None
