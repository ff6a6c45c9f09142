"""Mutants of ledgers in PostgreSQL: what keeps a charge there, and keeps it apart."""

from mutant import Mutant

_LOG, _SESSION = (
    "platform/dpsweep/foundation/postgres/log.py",
    "platform/dpsweep/foundation/postgres/sessions.py",
)
_TESTS = "tests/unit/foundation/test_postgres.py::"

DATABASES = (
    Mutant(
        "a record that need not come next",
        _LOG,
        "and (select count(*) from {SCHEMA}.records where log = id) = %(seq)s\nand exists",
        "and exists",
        (f"{_TESTS}test_a_row_that_was_deleted_is_missed",),
        "charges behind a gap that nobody sees before the next launch",
    ),
    Mutant(
        "a session without the lock",
        _LOG,
        "    and classid = {LOCKS} and objid = id\n",
        "    or true\n",
        (f"{_TESTS}test_a_lock_that_the_session_does_not_hold_is_no_lock",),
        "two writers behind a pool of connections",
    ),
    Mutant(
        "an answer that was lost",
        _LOG,
        "if behind == [line]:",
        "if False:",
        (f"{_TESTS}test_an_answer_that_was_lost_leaves_the_record_once",),
        "a charge that is there and is called another's",
    ),
    Mutant(
        "another's record taken for one's own",
        _LOG,
        "if behind == [line]:",
        "if behind:",
        (f"{_TESTS}test_a_writer_that_lost_its_lock_to_another_writes_nothing",),
        "steps that run without a charge",
    ),
    Mutant(
        "a log that goes on after an outage",
        _LOG,
        "                self._is_lost = True\n",
        "",
        (f"{_TESTS}test_a_log_whose_database_stays_away_takes_no_more",),
        "a record on top of one whose fate is unknown",
    ),
    Mutant(
        "a lock that is not asked for",
        _LOG,
        "        if not row[1]:",
        "        if False:",
        (f"{_TESTS}test_two_writers_exclude_each_other_and_the_second_hears_of_the_first",),
        "two processes that charge one trial",
    ),
    Mutant(
        "a server that forgets",
        _SESSION,
        'if value == "off":',
        "if False:",
        (f"{_TESTS}test_the_servers_own_words_decide_whether_it_forgets",),
        "charges that a power cut takes back",
    ),
    Mutant(
        "a gap in what is read",
        _SESSION,
        "if seq != number:",
        "if False:",
        (f"{_TESTS}test_a_row_that_was_deleted_is_missed",),
        "a ledger from which a charge was deleted",
    ),
)
