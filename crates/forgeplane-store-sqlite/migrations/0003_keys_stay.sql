-- A key verifies what was signed with it, and what was signed is never removed.
CREATE TRIGGER worker_key_stays BEFORE DELETE ON worker_key BEGIN SELECT RAISE(ABORT, 'immutable'); END;
